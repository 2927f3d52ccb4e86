"""What goes wrong, and when: faults drawn from a seed, for any runner.

    SeededFaults ── strike(plan) ──► Strike ──► FaultyRunner: what the step leaves behind, and says

A fault is somebody's or nobody's. One that is a request's strikes every step that request is in: it is the culprit, and
has to end. One that is nobody's passes: it does not strike the same requests again before they got a token, since who
fails again and again cannot be told from a culprit. Clearing a sequence never fails: llama.cpp's does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from forerun.core.step import (
    ForkSequence,
    KvOperation,
    RestoreSegment,
    StepPlan,
    StepResult,
    StoreSegment,
    TruncateSequence,
)

RequestOf = Callable[[int], str | None]
"""Whose a sequence id is, such as `Scheduler.request_of`."""


class Fault(StrEnum):
    """One way for a step to go wrong."""

    NOT_BEGUN = "decode not begun"
    """The native decode fails before it has written anything."""
    HALFWAY = "decode halfway"
    """It fails when some rows are written."""
    LATE = "decode late"
    """It fails when everything is written."""
    ABORTED = "decode aborted"
    NO_ROOM = "no room"
    LOGITS = "broken logits"
    """It succeeds, and what comes out for one request is no number: that one alone gets nothing from the step."""
    DRAFT = "draft"
    """The draft model does nothing: fewer proposals, no failed step."""
    FORK = "fork"
    TRUNCATE = "truncate"
    RESTORE = "restore"
    STORE = "store"
    """The copy is not made: no failed step."""
    SLOW = "slow"
    """The step takes longer."""


OF_DECODES = frozenset({Fault.NOT_BEGUN, Fault.HALFWAY, Fault.LATE, Fault.ABORTED, Fault.NO_ROOM, Fault.LOGITS})
"""Faults of steps with rows; these can be a request's."""
HARMLESS = frozenset({Fault.DRAFT, Fault.STORE, Fault.SLOW})
"""Faults that fail no step."""
_OPERATIONS: dict[type[KvOperation], Fault] = {
    ForkSequence: Fault.FORK,
    TruncateSequence: Fault.TRUNCATE,
    RestoreSegment: Fault.RESTORE,
    StoreSegment: Fault.STORE,
}


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault in one step."""

    fault: Fault
    operation: int = 0
    """Index of the plan's operation that goes wrong, where it is one of those."""
    culprit: str | None = None
    """Whose fault it is."""


class SeededFaults:
    """Faults of a run, by a seed: the same plans are struck alike. Used by one thread.

    A step is struck with probability `rate`, by one of `kinds` that can strike it; `culprits` is the share of the
    decodes' faults that are a request's. `most_culprits`: requests that may be culprits.
    """

    def __init__(
        self,
        seed: int,
        rate: float = 0.01,
        *,
        kinds: Collection[Fault] = tuple(Fault),
        culprits: float = 0.2,
        most_culprits: int = 10**9,
    ) -> None:
        self.rate = rate
        self.counts: Counter[Fault] = Counter()
        """Steps struck, by fault."""
        self.culprits: dict[str, Fault] = {}
        """Requests whose every step fails, and how."""
        self._kinds = tuple(kinds)
        self._share = culprits
        self._most_culprits = most_culprits
        self._shaken: set[str] = set()
        """Requests that were part of a failed step and have not got a token since."""
        self._random = Random(seed)

    def strike(self, plan: StepPlan, request_of: RequestOf) -> Strike | None:
        """What goes wrong in a step, if anything."""
        return self.draw(_possible(plan), requests_in(plan, request_of))

    def draw(self, possible: Iterable[Strike], requests: Sequence[str]) -> Strike | None:
        """What goes wrong, if anything, among what could where these requests have rows."""
        strike = self._drawn(possible, requests)
        if strike is not None:
            self.counts[strike.fault] += 1
        return strike

    def _drawn(self, possible: Iterable[Strike], requests: Sequence[str]) -> Strike | None:
        possible = list(possible)
        culprit = next((name for name in requests if name in self.culprits), None)
        if culprit is not None and any(strike.fault in OF_DECODES for strike in possible):
            return Strike(self.culprits[culprit], culprit=culprit)
        if self._random.random() >= self.rate:
            return None
        is_shaken = not self._shaken.isdisjoint(requests)
        allowed = HARMLESS.intersection(self._kinds) if is_shaken else self._kinds
        choices = [strike for strike in possible if strike.fault in allowed]
        strike = self._random.choice(choices) if choices else None
        if strike is None or strike.fault not in OF_DECODES or not requests:
            return strike
        if len(self.culprits) < self._most_culprits and self._random.random() < self._share:
            name = self._random.choice(requests)
            self.culprits[name] = strike.fault
            return Strike(strike.fault, culprit=name)
        return strike

    def ended(self, plan: StepPlan, result: StepResult, request_of: RequestOf) -> None:
        """How a step ended: requests that got a token from it are past whatever struck them before."""
        if result.failure is not None:
            self._shaken.update(requests_in(plan, request_of))
        elif self._shaken or result.faults:
            self._shaken.difference_update({request_of(sequence_id) or "" for sequence_id in result.sequences})
            self._shaken.update({request_of(sequence_id) or "" for sequence_id in result.faults})

    def strikes_store(self, kind: str, key: str) -> bool:  # noqa: ARG002
        """Whether a call of the store fails; for FakeStore's `faults`."""
        return self._random.random() < self.rate

    def __repr__(self) -> str:
        return f"SeededFaults({self.counts.total()} faults, {len(self.culprits)} culprits)"


def _possible(plan: StepPlan) -> list[Strike]:
    """What can go wrong in a step."""
    kinds = [Fault.SLOW]
    if plan.draft_fills or plan.draft_requests:
        kinds.append(Fault.DRAFT)
    if plan.decode or plan.prefill:
        kinds += sorted(OF_DECODES)
    strikes = [Strike(kind) for kind in kinds]
    for index, operation in enumerate(plan.operations):
        if (kind := _OPERATIONS.get(type(operation))) is not None:
            strikes.append(Strike(kind, index))
    return strikes


def requests_in(plan: StepPlan, request_of: RequestOf) -> list[str]:
    """The requests with rows in a step, in order of the rows."""
    return [name for sequence_id in plan.sequence_ids() if (name := request_of(sequence_id)) is not None]
