"""Decides what is drafted in a step, learns what came of it, and keeps the draft's memory in step with the target's.

For each sequence the draft holds a prefix of what is known:

    known   [ ............................ | pending ]
    target  [ ............................ ]              computed
    draft   [ ............... ]                           held; behind by a lot: filled; by a little: caught up
                                                          in the first batch of drafting

A lookup proposal that is not worth its rows is remembered and compared with what the target says anyway: being right for
free earns it rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.core.acceptance import Acceptance, DrafterRecord, RememberedProposal, shared_beginning
from forerun.core.allocation import DraftAllocator, DraftOption, StepLoad
from forerun.core.config import SchedulerConfig
from forerun.core.costs import StepCosts
from forerun.core.pool import SequencePool
from forerun.core.running import RequestState
from forerun.core.step import DecodeRow, Drafter, DraftFill, DraftRequest, Proposal, SequenceResult, StepPlan, StepTimes

MODEL_DRAFTER = "draft"
_CATCH_UP = 16
"""The draft may be this many tokens behind (the pending token included) and still draft at once."""
_FIRST_GUESS = {MODEL_DRAFTER: 0.7}
_PROBE_SHARE = 0.01
"""Time that may go into drafts expected not to pay, to see whether they do now."""
_PROBE_LENGTH = 2


@dataclass(slots=True)
class Drafts:
    """What a step drafts, by sequence id."""

    proposed: dict[int, Proposal] = field(default_factory=dict)
    """From the drafter that needs no model."""
    requests: list[DraftRequest] = field(default_factory=list)
    """For the draft model."""

    @property
    def rows(self) -> int:
        """Target rows the drafts may take."""
        return sum(len(p.tokens) for p in self.proposed.values()) + sum(request.limit for request in self.requests)

    @property
    def model_cells(self) -> int:
        """Cells of the draft model's memory that the requests may take: its last proposals are not evaluated."""
        return sum(request.tokens.size - request.held + request.limit - 1 for request in self.requests)

    def clear(self) -> None:
        self.proposed.clear()
        self.requests.clear()


@dataclass(slots=True)
class _Candidate:
    """A sequence that could draft, by one drafter."""

    state: RequestState
    option: DraftOption
    proposal: Proposal | None = None
    request: DraftRequest | None = None


class DraftPlanner:
    """Chooses a drafter and a length for each sequence that decodes, and learns from results."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: SequencePool,
        allocator: DraftAllocator,
        lookup: Drafter,
        costs: StepCosts | None,
    ) -> None:
        self._config = config
        self._pool = pool
        self._allocator = allocator
        self._lookup = lookup
        self._costs = costs
        self._records: dict[tuple[str, int], DrafterRecord] = {}
        self._probe_ms = 0.0

    @property
    def is_on(self) -> bool:
        return self._config.speculation > 0

    # --- deciding ----------------------------------------------------------

    def plan(self, ready: Sequence[RequestState], spare_rows: int, other_rows: int = 0) -> Drafts:
        """Drafts for the sequences about to decode one token, in at most `spare_rows` rows together."""
        drafts = Drafts()
        candidates = self._candidates(ready) if self.is_on else []
        if not candidates:
            return drafts
        load = self._load(len(ready), other_rows)
        lengths = self._allocator.allocate([candidate.option for candidate in candidates], spare_rows, load)
        for candidate, length in zip(candidates, lengths, strict=True):
            self._add(drafts, candidate, length)
        if not drafts.requests:
            self._probe(drafts, candidates, spare_rows - drafts.rows, load)
        return drafts

    def _load(self, sequences: int, other_rows: int) -> StepLoad:
        return StepLoad(sequences, other_rows, self._pool.target_cells.used, self._pool.draft_cells.used)

    def _candidates(self, ready: Sequence[RequestState]) -> list[_Candidate]:
        """What each sequence could draft: a lookup where it finds something as sure as the model, else the model."""
        drafting = [(state, wanted) for state in ready if (wanted := self._wanted(state)) > 0]
        asked = [DraftRequest(_id(state), state.history.tokens, 0, wanted) for state, wanted in drafting]
        candidates: list[_Candidate] = []
        for (state, wanted), proposal in zip(drafting, self._lookup.propose(asked), strict=True):
            request = self._model_request(state, wanted)
            lookup = self._option(state, self._lookup.name, proposal.grade, len(proposal.tokens))
            model = self._option(state, MODEL_DRAFTER, 0, request.limit if request else 0)
            if proposal.tokens and (request is None or lookup.chances[0] >= model.chances[0]):
                candidates.append(_Candidate(state, lookup, proposal=proposal))
            elif request is not None:
                candidates.append(_Candidate(state, model, request=request))
        return candidates

    def _option(self, state: RequestState, drafter: str, grade: int, length: int) -> DraftOption:
        chances = self._acceptance(state, drafter, grade).chances(length) if length else []
        return DraftOption(chances, uses_model=drafter == MODEL_DRAFTER)

    def _acceptance(self, state: RequestState, drafter: str, grade: int) -> Acceptance:
        key = (drafter, grade)
        known = state.drafting.acceptance.get(key)
        if known is None:
            shared = self._records.setdefault(key, DrafterRecord(_FIRST_GUESS.get(drafter, 0.5)))
            known = state.drafting.acceptance[key] = Acceptance(shared)
        return known

    def _add(self, drafts: Drafts, candidate: _Candidate, length: int) -> None:
        state, proposal, request = candidate.state, candidate.proposal, candidate.request
        if proposal is not None:
            if length:
                drafts.proposed[_id(state)] = Proposal(proposal.tokens[:length], proposal.grade)
            else:
                state.drafting.remember(self._lookup.name, proposal, state.history.size)
        elif request is not None and length:
            request = DraftRequest(request.sequence_id, request.tokens, request.held, length)
            if self._pool.make_draft_room(drafts.model_cells + request.tokens.size - request.held + length - 1):
                drafts.requests.append(request)

    def _probe(self, drafts: Drafts, candidates: Sequence[_Candidate], spare_rows: int, load: StepLoad) -> None:
        """Now and then draft with the model although it is not expected to pay, within a share of the time."""
        if self._costs is None or self._costs.draft is None or spare_rows < _PROBE_LENGTH:
            return
        for candidate in candidates:
            if candidate.request is None or len(candidate.option.chances) < _PROBE_LENGTH:
                continue
            if self._probe_ms >= self._probe_cost(load):
                self._probe_ms = 0.0
                self._add(drafts, candidate, _PROBE_LENGTH)
            return

    def _probe_cost(self, load: StepLoad) -> float:
        costs = self._costs
        if costs is None or costs.draft is None:
            return 0.0
        rows = load.sequences + load.other_rows
        target = costs.target.predict(rows + _PROBE_LENGTH, load.cells) - costs.target.predict(rows, load.cells)
        return target + _PROBE_LENGTH * costs.draft.predict(1, load.draft_cells)

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

        Only where drafting with it is expected to pay. The cells that the step's own drafts may take are left to them.
        """
        fills: list[DraftFill] = []
        planned, drafted = 0, drafts.model_cells
        for state in states if self.is_on else ():
            if not self._drafts_with_model(state) or state.history.size >= self._config.draft_n_ctx:
                continue
            held = self._pool.draft_cells.held(_id(state))
            rows = min(state.computed - held, budget - planned)
            if state.computed - held < _CATCH_UP or rows < 1 or not self._model_may_pay(state, len(states)):
                continue
            if not self._pool.make_draft_room(drafted + planned + rows):
                continue
            planned += rows
            fills.append(DraftFill(_id(state), state.history.slice(held, held + rows), held))
        return fills

    def _model_may_pay(self, state: RequestState, sequences: int) -> bool:
        option = self._option(state, MODEL_DRAFTER, 0, max(self._wanted(state), 0))
        return any(self._allocator.allocate([option] * sequences, 2**20, self._load(sequences, 0)))

    # --- learning ----------------------------------------------------------

    def learn_costs(self, plan: StepPlan, rows: int, times: StepTimes) -> None:
        """What a successful step of `rows` target rows took."""
        costs = self._costs
        if costs is None:
            return
        if times.target > 0 and rows:
            costs.target.observe(rows, self._pool.target_cells.used, times.target * 1e3)
            self._probe_ms += times.target * 1e3 * _PROBE_SHARE
        if times.draft > 0 and plan.draft_requests:
            costs.learn_draft(_rows_by_depth(plan.draft_requests), self._pool.draft_cells.used, times.draft * 1e3)

    def plain_ms(self, rows: int) -> float | None:
        """What a step of `rows` rows without drafts would take; None where nothing was measured."""
        return None if self._costs is None else self._costs.target.predict(rows, self._pool.target_cells.used)

    def learn(self, state: RequestState, row: DecodeRow, result: SequenceResult, delivered: int) -> None:
        """What came of a sequence's drafts; `delivered` tokens of the result were added to the request."""
        drafting = state.drafting
        if result.drafted:
            drafter, grade = (self._lookup.name, row.grade) if row.drafts else (MODEL_DRAFTER, 0)
            self._acceptance(state, drafter, grade).add(result.accepted, result.drafted)
            drafting.count(drafter, result.drafted, min(result.accepted, delivered))
        if drafting.remembered is not None:
            self._compare(state, drafting.remembered)

    def _compare(self, state: RequestState, remembered: RememberedProposal) -> None:
        came = state.history.slice(remembered.at, state.history.size).tolist()
        tokens = remembered.proposal.tokens
        shared = shared_beginning(tokens, came)
        if shared < min(len(tokens), len(came)) or len(came) >= len(tokens):
            self._acceptance(state, remembered.drafter, remembered.proposal.grade).add(shared, len(tokens))
            state.drafting.remembered = None


def _rows_by_depth(requests: Sequence[DraftRequest]) -> list[int]:
    """Rows of the draft model's decodes: all catch up at once, then one row for each that goes on."""
    deepest = max(request.limit for request in requests)
    first = sum(request.tokens.size - request.held for request in requests)
    return [first, *(sum(request.limit > depth for request in requests) for depth in range(1, deepest))]


def _id(state: RequestState) -> int:
    assert state.sequence is not None
    return state.sequence.id
