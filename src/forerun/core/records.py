"""What drafters achieved: over all of a tenant's requests, and in each of them."""

from __future__ import annotations

from forerun.core.acceptance import Acceptance, DrafterRecord
from forerun.core.config import MODEL_DRAFTER
from forerun.core.drafting import FROM_THE_START, NgramDrafter
from forerun.core.running import RequestState

FORCED = "forced"
"""Names the tokens that a request's hook says must come: certain until one was refused."""
_MODEL_GUESS = 0.6
_LOOKUP_GUESSES = (0.2, 0.2, 0.2, 0.3, 0.5, 0.8)
"""First guesses by grade: long matches are nearly always copies. Rather low, since lookups earn their rate for free."""
_OWN_GUESSES = (0.3, 0.1, 0.3, 0.5, 0.75, 0.9, 0.3, 0.4, 0.8)
"""The same for the request's own text, which is copied more often than others' texts are; the grades of edits
and of beginnings are named in drafting.py."""
_LONG_COPIES = frozenset({4, 5, FROM_THE_START})
_SURER = 0.2
"""Each token of a long copy that was right takes so much of the doubt from the next one."""
_TENANTS = 1000
"""Tenants whose drafters' records are kept: the ones that came last."""


class DrafterRecords:
    """Records by tenant, drafter and grade: what one tenant's texts taught must not show in another's draft lengths."""

    def __init__(self) -> None:
        self._records: dict[str, dict[tuple[str, int], DrafterRecord]] = {}

    def acceptance(self, state: RequestState, drafter: str, grade: int) -> Acceptance:
        """A request's own record of a drafter's proposals of one grade, on top of what others taught."""
        key = (drafter, grade)
        known = state.drafting.acceptance.get(key)
        if known is None:
            record = self.record(state.request.tenant, drafter, grade)
            known = state.drafting.acceptance[key] = Acceptance(record)
        return known

    def record(self, tenant: str, drafter: str, grade: int) -> DrafterRecord:
        """What all requests of a tenant taught about proposals of one grade."""
        records = self._of_tenant(tenant)
        record = records.get((drafter, grade))
        if record is None:
            record = records[drafter, grade] = DrafterRecord(_first_guess(drafter, grade), _surer(drafter, grade))
        return record

    def _of_tenant(self, tenant: str) -> dict[tuple[str, int], DrafterRecord]:
        records = self._records[tenant] = self._records.pop(tenant, {})
        if len(self._records) > _TENANTS:
            del self._records[next(iter(self._records))]
        return records

    def __repr__(self) -> str:
        return f"DrafterRecords({len(self._records)} tenants)"


def _first_guess(drafter: str, grade: int) -> float:
    if drafter == MODEL_DRAFTER:
        return _MODEL_GUESS
    if drafter == FORCED:
        return 1.0
    guesses = _OWN_GUESSES if drafter == NgramDrafter.name else _LOOKUP_GUESSES
    return guesses[min(grade, len(guesses) - 1)]


def _surer(drafter: str, grade: int) -> float:
    return _SURER if drafter == NgramDrafter.name and grade in _LONG_COPIES else 0.0
