"""Decides what is drafted in a step, and keeps the draft model's memory in step with the target's.

For each sequence the draft holds a prefix of what is known:

    known   [ ............................ | pending ]
    target  [ ............................ ]              computed
    draft   [ ............... ]                           held; behind by a lot: filled; by a little: caught up
                                                          in the first batch of drafting
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.core.config import SchedulerConfig
from forerun.core.drafting import DraftAllocator
from forerun.core.pool import SequencePool
from forerun.core.running import RequestState
from forerun.core.step import Drafter, DraftFill, DraftRequest

_CATCH_UP = 16
"""The draft may be this many tokens behind (the pending token included) and still draft at once."""


@dataclass(slots=True)
class Drafts:
    """What a step drafts, by sequence id."""

    proposed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Tokens from drafters that need no model."""
    requests: list[DraftRequest] = field(default_factory=list)
    """For the draft model."""

    @property
    def rows(self) -> int:
        """Target rows the drafts may take."""
        return sum(map(len, self.proposed.values())) + sum(request.limit for request in self.requests)

    @property
    def model_cells(self) -> int:
        """Cells of the draft model's memory that the requests may take: its last proposals are not evaluated."""
        return sum(request.tokens.size - request.held + request.limit - 1 for request in self.requests)


class DraftPlanner:
    """Chooses a drafter and a length for each sequence that decodes."""

    def __init__(self, config: SchedulerConfig, pool: SequencePool, allocator: DraftAllocator, lookup: Drafter) -> None:
        self._config = config
        self._pool = pool
        self._allocator = allocator
        self._lookup = lookup

    @property
    def is_on(self) -> bool:
        return self._config.speculation > 0

    def plan(self, ready: Sequence[RequestState], spare_rows: int) -> Drafts:
        """Drafts for the sequences about to decode one token, in at most `spare_rows` rows together."""
        drafts = Drafts()
        if not self.is_on:
            return drafts
        limits = self._allocator.allocate([self._wanted(state) for state in ready], spare_rows)
        drafting = [(state, limit) for state, limit in zip(ready, limits, strict=True) if limit > 0]
        asked = [DraftRequest(_id(state), state.history.tokens, 0, limit) for state, limit in drafting]
        draft_cells = 0
        for (state, limit), found in zip(drafting, self._lookup.propose(asked), strict=True):
            if found:
                drafts.proposed[_id(state)] = found
                continue
            request = self._model_request(state, limit)
            if request is None:
                continue
            needed = draft_cells + request.tokens.size - request.held + request.limit - 1
            if self._pool.make_draft_room(needed):
                draft_cells = needed
                drafts.requests.append(request)
        return drafts

    def _wanted(self, state: RequestState) -> int:
        asked = state.request.params.speculation
        most = self._config.speculation if asked is None else min(asked, self._config.speculation)
        return min(most, state.output_left - 1, self._config.n_ctx - state.computed - 1)

    def _model_request(self, state: RequestState, limit: int) -> DraftRequest | None:
        if not self._drafts_with_model(state):
            return None
        held, known = self._pool.draft_cells.held(_id(state)), state.history.size
        limit = min(limit, self._config.draft_n_ctx - known + 1)
        if known - held > _CATCH_UP or limit < 1:
            return None
        return DraftRequest(_id(state), state.history.tokens, held, limit)

    def _drafts_with_model(self, state: RequestState) -> bool:
        """Media prompts draft by lookup only: the draft model has not seen the media."""
        asked = state.request.params.speculation
        return self._config.draft_n_ctx > 0 and not state.has_media and (asked is None or asked > 0)

    def fills(self, states: Sequence[RequestState], budget: int, drafts: Drafts) -> list[DraftFill]:
        """Text for the draft model to run through, where it is too far behind to catch up while drafting.

        The cells that the step's own drafts may take are left to them.
        """
        fills: list[DraftFill] = []
        planned, drafted = 0, drafts.model_cells
        for state in states if self.is_on else ():
            if not self._drafts_with_model(state) or state.history.size >= self._config.draft_n_ctx:
                continue
            held = self._pool.draft_cells.held(_id(state))
            rows = min(state.computed - held, budget - planned)
            if state.computed - held < _CATCH_UP or rows < 1:
                continue
            if not self._pool.make_draft_room(drafted + planned + rows):
                continue
            planned += rows
            fills.append(DraftFill(_id(state), state.history.slice(held, held + rows), held))
        return fills


def _id(state: RequestState) -> int:
    assert state.sequence is not None
    return state.sequence.id
