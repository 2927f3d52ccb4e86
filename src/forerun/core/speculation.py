"""Decides what is drafted in a step, learns what came of it, and keeps the draft's memory in step with the target's.

For each sequence the draft holds a prefix of what is known:

    known   [ ............................ | pending ]
    target  [ ............................ ]              computed
    draft   [ ............... ]                           held; behind by a lot: filled; by a little: caught up
                                                          in the first batch of drafting

Several drafters look a continuation up (the request's own text, past outputs, a plug-in); the one whose proposal is
expected to give most accepted tokens is taken. The others', and one that is not worth its rows, are remembered and
compared with what the target says anyway: being right for free earns them rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from forerun.core.acceptance import RememberedProposal
from forerun.core.allocation import DraftAllocator, DraftOption, StepLoad
from forerun.core.config import MODEL_DRAFTER, SchedulerConfig, Verification
from forerun.core.costs import StepCosts
from forerun.core.drafting import checked_forced
from forerun.core.origins import Origins
from forerun.core.pool import SequencePool
from forerun.core.records import FORCED, DrafterRecords
from forerun.core.running import RequestState, sequence_of
from forerun.core.step import DecodeRow, Drafter, DraftFill, DraftRequest, Proposal, SequenceResult, StepPlan, StepTimes
from forerun.core.suffix import SuffixIndex, WrittenText
from forerun.core.synthetic import SyntheticAcceptance

_CATCH_UP = 16
"""The draft may be this many tokens behind (the pending token included) and still draft at once."""
_GREEDY, _MATCHED, _BY_REJECTION, _BEHIND_MEDIA = range(4)
"""Grades of the draft model's proposals: they are accepted at different rates."""
_BETTER = 0.05
"""Rejection sampling accepts at least as much of the same drafts: matching must seem so much better to be used."""
_TRY_OTHER = 32
"""The way that is thought worse is tried at every so manieth token."""
_PROBE_SHARE = 0.01
"""Time that may go into drafts expected not to pay, to see whether they do now."""
_FIRST_PROBES = 1.0
"""Plain steps' worth of time to begin with."""
_HORIZON = 200
"""A draft memory is filled where that pays within so many tokens: nobody knows when an answer ends."""
_MOST_LOST = 0.01
"""Share of a sequence's plain time that drafting may cost it, its own or others': nobody is slowed down for others."""
_REST = 4
"""A lookup that was of no use is repeated so many tokens later: free prose need not pay for one a token."""
_LOOK_AGAIN = 32
"""Whether filling pays is looked at again after so many tokens."""


@dataclass(frozen=True, slots=True)
class Found:
    """A proposal, and whose it is."""

    drafter: str
    proposal: Proposal


@dataclass(slots=True)
class Drafts:
    """What a step drafts, by sequence id."""

    proposed: dict[int, Found] = field(default_factory=dict)
    """From drafters that need no model."""
    requests: list[DraftRequest] = field(default_factory=list)
    """For the draft model."""

    @property
    def rows(self) -> int:
        """Target rows the drafts may take."""
        if not (self.proposed or self.requests):
            return 0
        return sum(len(found.proposal.tokens) for found in self.proposed.values()) + sum(
            request.limit for request in self.requests
        )

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
    found: Found | None = None
    request: DraftRequest | None = None

    @property
    def behind(self) -> int:
        """Tokens the draft model has to catch up with."""
        return 0 if self.request is None else self.request.tokens.size - self.request.held


class DraftPlanner:
    """Chooses a drafter and a length for each sequence that decodes, and learns from results."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: SequencePool,
        allocator: DraftAllocator,
        lookups: Sequence[Drafter],
        costs: StepCosts | None,
        vocabulary_size: int,
    ) -> None:
        self._config = config
        self._pool = pool
        self._allocator = allocator
        self._lookups = tuple(lookups)
        self._texts = next((drafter for drafter in lookups if isinstance(drafter, SuffixIndex)), None)
        self._vocabulary_size = vocabulary_size
        self._costs = costs
        self._rest = _REST if costs else 1
        self._records = DrafterRecords()
        synthetic = config.synthetic_acceptance
        self._synthetic = None if synthetic is None else SyntheticAcceptance(synthetic)
        self._first_loss_ms = costs.target.predict(1) * _FIRST_PROBES if costs else 0.0
        self._probe_ms = self._first_loss_ms

    @property
    def is_on(self) -> bool:
        return self._config.speculation > 0

    def watch_lookups(self, watched: Callable[[Drafter], Drafter]) -> list[str]:
        """Ask what `watched` makes of each drafter that needs no model from now on; their names."""
        self._lookups = tuple(map(watched, self._lookups))
        return [drafter.name for drafter in self._lookups]

    # --- deciding ----------------------------------------------------------

    def plan(
        self, ready: Sequence[RequestState], spare_rows: int, other_rows: int = 0, *, room_ms: float = math.inf
    ) -> Drafts:
        """Drafts for the sequences about to decode one token, in at most `spare_rows` rows together.

        In company a sequence waits for others' drafts `room_ms` at most, beyond what its own expected tokens are worth.
        """
        drafts = Drafts()
        if not (self.is_on and ready):
            return drafts
        load = self._load(len(ready), other_rows)
        candidates = self._candidates(ready, load)
        if not candidates:
            return drafts
        prompt = [candidate for candidate in candidates if candidate.behind <= _CATCH_UP]
        room_ms = room_ms if len(ready) > 1 else math.inf
        others = {_id(state): min(self._allowance(state), room_ms) for state in ready}
        for candidate in prompt:
            candidate.option = replace(candidate.option, allowance_ms=others.pop(_id(candidate.state)))
        load = replace(load, allowance_ms=min(others.values(), default=math.inf))
        lengths = self._allocator.allocate([candidate.option for candidate in prompt], spare_rows, load)
        for candidate, length in zip(prompt, lengths, strict=True):
            self._add(drafts, candidate, length)
            if not length and candidate.found is not None and len(ready) > 1:
                candidate.state.drafting.look_up_at = candidate.state.history.size + self._resting(
                    ready, candidate.state
                )
        if not drafts.requests and self._costs is not None and self._costs.draft is not None:
            self._probe(drafts, candidates, spare_rows - drafts.rows, load)
        return drafts

    def _load(self, sequences: int, other_rows: int) -> StepLoad:
        return StepLoad(sequences, other_rows, self._pool.target_cells.used, self._pool.draft_cells.used)

    def _allowance(self, state: RequestState) -> float:
        """Milliseconds that drafting may cost a sequence in this step: what it gained before, and a small share."""
        drafting = state.drafting
        return drafting.saved_ms + _MOST_LOST * drafting.plain_ms + self._first_loss_ms

    def _candidates(self, ready: Sequence[RequestState], load: StepLoad) -> list[_Candidate]:
        """What the sequences could draft, those left out that find nothing worth a row."""
        drafting = [(state, wanted) for state in ready if (wanted := self._wanted(state)) > 0]
        found = self._look_up(drafting)
        least = self._allocator.least_chance(load.sequences) if not load.other_rows else 0.0
        candidates: list[_Candidate] = []
        for state, wanted in drafting:
            request = self._model_request(state, wanted)
            proposed = [*self._forced(state, wanted, request), *found.get(_id(state), ())]
            candidate = self._candidate(state, _legal(state, proposed), request, least)
            if candidate is not None:
                candidates.append(candidate)
            if _id(state) in found and (candidate is None or candidate.found is None):
                state.drafting.look_up_at = state.history.size + self._resting(ready, state)
        return candidates

    def _resting(self, ready: Sequence[RequestState], state: RequestState) -> int:
        """Tokens until a lookup of no use is repeated: at once after one of use, longer in company, where drafts seldom
        get rows."""
        since = state.history.size - max(state.drafting.useful_at, state.history.prompt_tokens)
        return min(self._rest, 1 + since) * max(1, len(ready) // 2)

    def _look_up(self, drafting: Sequence[tuple[RequestState, int]]) -> dict[int, list[Found]]:
        """Proposals for the sequences whose last lookup was of use, or is some tokens ago."""
        asked = [
            DraftRequest(_id(state), state.history.tokens, 0, wanted, state.request)
            for state, wanted in drafting
            if state.history.size >= state.drafting.look_up_at
        ]
        found: dict[int, list[Found]] = {request.sequence_id: [] for request in asked}
        for drafter in self._lookups if asked else ():
            for request, proposal in zip(asked, drafter.propose(asked), strict=True):
                if proposal.tokens:
                    found[request.sequence_id].append(Found(drafter.name, proposal))
        return found

    def _forced(self, state: RequestState, limit: int, request: DraftRequest | None) -> list[Found]:
        """What the request's hook, or else its grammar, says must come next."""
        hook, history = state.drafting.forced, state.history
        if hook is None:
            return self._forced_by_grammar(state, limit, request)
        output = history.slice(history.prompt_tokens, history.size)
        proposal = checked_forced(hook, output, limit, self._vocabulary_size)
        if proposal is None:
            state.drafting.forced = None
        return [Found(FORCED, proposal)] if proposal is not None and proposal.tokens else []

    def _forced_by_grammar(self, state: RequestState, limit: int, request: DraftRequest | None) -> list[Found]:
        """What the grammar leaves no choice about, where that is more than a draft model, which obeys it too, gives."""
        constraint = state.sampling.constraint
        tokens = () if constraint is None else tuple(constraint.forced(state.history, limit))
        if request is not None and tokens:
            acceptance = self._records.acceptance(state, MODEL_DRAFTER, state.drafting.model_grade)
            if len(tokens) <= sum(acceptance.chances(request.limit)):
                return []
        return [Found(FORCED, Proposal(tokens))] if tokens else []

    def _candidate(
        self, state: RequestState, proposed: Sequence[Found], request: DraftRequest | None, least: float
    ) -> _Candidate | None:
        """The best lookup where it is as sure as the model, else the model, where there is one."""
        best = self._best(state, proposed, request, least) if proposed else None
        for found in proposed:
            if found is not best:
                state.drafting.remember(found.drafter, found.proposal, state.history.size)
        if best is not None:
            option = self._option(state, best.drafter, best.proposal.grade, len(best.proposal.tokens))
            return _Candidate(state, option, found=best)
        if request is None:
            return None
        return _Candidate(
            state, self._option(state, MODEL_DRAFTER, state.drafting.model_grade, request.limit), request=request
        )

    def _best(
        self, state: RequestState, proposed: Sequence[Found], request: DraftRequest | None, least: float
    ) -> Found | None:
        """The proposal that most tokens are expected to be accepted of; the earlier drafter's of equal ones.

        None contradicts forced tokens, is less likely to begin right than `least`, or than the model's.
        """
        forced = proposed[0].proposal.tokens if proposed[0].drafter == FORCED else ()
        if request is not None and request.tokens.size - request.held <= _CATCH_UP:
            least = max(least, self._records.acceptance(state, MODEL_DRAFTER, state.drafting.model_grade).first_rate())
        usable = [
            found
            for found in proposed
            if self._records.acceptance(state, found.drafter, found.proposal.grade).first_rate() >= least
            and (not forced or _agree(found.proposal.tokens, forced))
        ]
        if len(usable) < 2:
            return usable[0] if usable else None
        return max(usable, key=lambda found: self._expected(state, found))

    def _expected(self, state: RequestState, found: Found) -> float:
        """Tokens of a proposal that are expected to be accepted."""
        acceptance = self._records.acceptance(state, found.drafter, found.proposal.grade)
        return sum(acceptance.chances(len(found.proposal.tokens)))

    def _option(self, state: RequestState, drafter: str, grade: int, length: int) -> DraftOption:
        chances = self._records.acceptance(state, drafter, grade).chances(length) if length else []
        return DraftOption(chances, uses_model=drafter == MODEL_DRAFTER)

    def _add(self, drafts: Drafts, candidate: _Candidate, length: int) -> None:
        state, found, request = candidate.state, candidate.found, candidate.request
        if found is not None:
            if length:
                state.drafting.useful_at = state.history.size
                drafts.proposed[_id(state)] = Found(found.drafter, found.proposal.shortened(length))
            else:
                state.drafting.remember(found.drafter, found.proposal, state.history.size)
        elif request is not None and length:
            request = replace(request, limit=length)
            if self._pool.make_draft_room(drafts.model_cells + request.tokens.size - request.held + length - 1):
                drafts.requests.append(request)

    def _probe(self, drafts: Drafts, candidates: Sequence[_Candidate], spare_rows: int, load: StepLoad) -> None:
        """Now and then draft a token with the model although it is not expected to pay, within a share of the time.

        All sequences at once, since one decode of the draft model then teaches most; those too far behind are left out,
        since catching up would hold everybody up for longer than a prompt may.
        """
        most = self._config.prefill_rows_beside_decode
        probed = [
            candidate
            for candidate in candidates
            if 0 < candidate.behind <= _CATCH_UP
            or (0 < candidate.behind <= most and candidate.state.history.size < candidate.state.drafting.look_again_at)
        ]
        if not probed or len(probed) > spare_rows:
            return
        cost = self._probe_cost(probed, load)
        if self._probe_ms >= cost:
            self._probe_ms -= cost
            for candidate in probed:
                self._add(drafts, candidate, 1)

    def _probe_cost(self, probed: Sequence[_Candidate], load: StepLoad) -> float:
        costs = self._costs
        if costs is None or costs.draft is None:
            return 0.0
        rows = load.sequences + load.other_rows
        target = costs.target.predict(rows + len(probed), load.cells) - costs.target.predict(rows, load.cells)
        if self._config.memory.has_state:  # a rejection is expected, and costs a second decode
            target += costs.target.predict(len(probed), load.cells)
        return target + costs.draft.predict(sum(candidate.behind for candidate in probed), load.draft_cells, logits=0)

    def _wanted(self, state: RequestState) -> int:
        if state.drafting.is_off or state.is_suspect:
            return 0
        most = min(state.request.params.draft_limit, self._config.speculation)
        return min(most, state.output_left - 1, self._config.n_ctx - state.computed - 1)

    def _model_request(self, state: RequestState, limit: int) -> DraftRequest | None:
        if not self._drafts_with_model(state):
            return None
        held, known = self._pool.draft_cells.held(_id(state)), state.text_history.size
        limit = min(limit, self._config.draft_n_ctx - known + 1)
        if limit < 1 or (self._costs is None and known - held > _CATCH_UP):
            return None
        grade = state.drafting.model_grade = self._model_grade(state)
        return DraftRequest(
            _id(state),
            state.text_history.tokens,
            held,
            limit,
            state.request,
            state.sampling,
            wants_distributions=grade in (_BY_REJECTION, _BY_REJECTION + _BEHIND_MEDIA),
        )

    def _model_grade(self, state: RequestState) -> int:
        """How the next proposals of the draft model are to be chosen and verified. Behind media, which it has not seen,
        it is right less often, and what it is there is learned apart."""
        base = _BEHIND_MEDIA if state.has_media else 0
        return base + self._way(state, base)

    def _way(self, state: RequestState, base: int) -> int:
        params, method = state.request.params, self._config.verification
        if params.is_greedy:
            return _GREEDY
        if params.seed is not None or method is Verification.MATCH:
            return _MATCHED
        if method is Verification.REJECTION:
            return _BY_REJECTION
        # One request's own record is too short to tell ways apart that differ by a few in a hundred.
        rejection, matched = (
            self._records.record(state.request.tenant, MODEL_DRAFTER, base + grade).first_rate()
            for grade in (_BY_REJECTION, _MATCHED)
        )
        by_rejection = rejection + _BETTER >= matched
        return _BY_REJECTION if by_rejection != (state.history.size % _TRY_OTHER == 0) else _MATCHED

    def _drafts_with_model(self, state: RequestState) -> bool:
        """An MTP head reads the target's hidden states, row by row, and cannot leave media out; a model can."""
        is_off = state.drafting.is_off or state.drafting.is_model_off or state.is_suspect
        may_draft = state.request.params.draft_limit > 0 and not is_off
        can_skip = not state.has_media or self._config.draft_name == MODEL_DRAFTER
        return may_draft and self._config.draft_n_ctx > 0 and can_skip

    def model_ms(self, drafts: Drafts) -> float:
        """What the draft model is expected to take for a step's drafts; 0 where that is not known."""
        if self._costs is None or self._costs.draft is None or not drafts.requests:
            return 0.0
        predict, cells = self._costs.draft.predict, self._pool.draft_cells.used
        return sum(predict(rows, cells) for rows in rows_by_depth(drafts.requests))

    def filling_ms(self, fills: Sequence[DraftFill]) -> float:
        """The same for what it runs through."""
        if self._costs is None or self._costs.draft is None:
            return 0.0
        rows = sum(fill.tokens.size for fill in fills)
        return self._costs.draft.predict(rows, self._pool.draft_cells.used, logits=0)

    def fills(
        self, states: Sequence[RequestState], drafts: Drafts, bounds: Callable[[], tuple[int, float]]
    ) -> list[DraftFill]:
        """Text for the draft model to run through, where it is too far behind to catch up while drafting.

        Only where drafting with it is expected to pay, within `bounds`: rows, and milliseconds. The cells that the
        step's own drafts may take are left to them.
        """
        fills: list[DraftFill] = []
        if not (self.is_on and self._config.draft_n_ctx):
            return fills
        planned, drafted = 0, drafts.model_cells
        drafting = {request.sequence_id for request in drafts.requests}
        candidates = [state for state in states if _id(state) not in drafting]
        worth = self._worth_filling(candidates)
        if not worth:
            return fills
        budget, room_ms = bounds()
        patience = min([room_ms, *(self._allowance(state) for state in states if self._only_waits(state, worth))])
        for state in worth:
            held = self._pool.draft_cells.held(_id(state))
            rows = self._bearable(min(state.text_computed - held, budget - planned), planned, patience)
            if rows < 1 or not self._pool.make_draft_room(drafted + planned + rows):
                continue
            planned += rows
            fills.append(DraftFill(_id(state), state.text_history.slice(held, held + rows), held))
        return fills

    def _only_waits(self, state: RequestState, worth: Sequence[RequestState]) -> bool:
        """Whether a sequence that decodes gets nothing out of others' drafts being prepared."""
        return state.history.output_tokens > 0 and not self._drafts_with_model(state) and state not in worth

    def _bearable(self, rows: int, planned: int, patience: float) -> int:
        """As many of the rows as those who only wait can be asked to wait for."""
        if self._costs is None or self._costs.draft is None:
            return rows
        while rows > 0 and self._costs.draft.predict(planned + rows, logits=0) > patience:
            rows //= 2
        return rows

    def _worth_filling(self, states: Sequence[RequestState]) -> list[RequestState]:
        """Sequences far behind whose draft is expected to earn back what filling its memory costs."""
        behind = [state for state in states if self._is_far_behind(state)]
        if not behind:
            return []
        sharing = [state for state in states if self._drafts_with_model(state) and self._wanted(state) > 0]
        load = self._load(max(len(sharing), 1), 0)
        options = [
            self._option(state, MODEL_DRAFTER, state.drafting.model_grade, self._wanted(state)) for state in sharing
        ]
        lengths = self._allocator.allocate(options, self._config.max_num_batched_tokens - len(sharing), load)
        saving = self._allocator.saving(options, lengths, load)
        drafting = {_id(state) for state, length in zip(sharing, lengths, strict=True) if length}
        worth = [state for state in behind if _id(state) in drafting and self._earns_back(state, saving)]
        for state in behind:
            if state not in worth:
                state.drafting.look_again_at = state.history.size + _LOOK_AGAIN
        return worth

    def _is_far_behind(self, state: RequestState) -> bool:
        if not self._drafts_with_model(state) or state.text_history.size >= self._config.draft_n_ctx:
            return False
        missing = state.text_computed - self._pool.draft_cells.held(_id(state))
        return missing >= _CATCH_UP and state.history.size >= state.drafting.look_again_at

    def _earns_back(self, state: RequestState, saving: float) -> bool:
        if self._costs is None or self._costs.draft is None:
            return True
        missing = state.text_history.size - self._pool.draft_cells.held(_id(state))
        return saving * min(state.output_left, _HORIZON) > self._costs.draft.predict(missing, logits=0)

    def origins(self, row: DecodeRow, drafted: int) -> Origins:
        """Who proposed the `drafted` tokens that were verified behind a row: its own drafts, then the draft model's."""
        own = (row.origins or ((row.drafter, len(row.drafts)),)) if row.drafts else ()
        return (*own, (self._config.draft_name, drafted - len(row.drafts))) if drafted > len(row.drafts) else own

    # --- learning ----------------------------------------------------------

    def learn_costs(self, plan: StepPlan, times: StepTimes) -> None:
        """What a successful step took of the draft model's time, and left for probing."""
        costs = self._costs
        if costs is None:
            return
        self._probe_ms += times.target * 1e3 * _PROBE_SHARE
        if times.draft > 0 and plan.draft_requests:
            costs.learn_draft(rows_by_depth(plan.draft_requests), self._pool.draft_cells.used, times.draft * 1e3)

    def learn(self, state: RequestState, row: DecodeRow, result: SequenceResult) -> None:
        """What came of a sequence's drafts, once its tokens were added to the request."""
        drafting = state.drafting
        if result.drafted:
            drafter, grade = (row.drafter, row.grade) if row.drafts else (MODEL_DRAFTER, drafting.model_grade)
            self._records.acceptance(state, drafter, grade).add(result.accepted, result.drafted)
        for remembered in tuple(drafting.remembered.values()):
            self._compare(state, remembered)

    def read(self, state: RequestState, *, is_whole: bool = False) -> None:
        """Index what a request said, for the drafts of all of its tenant's."""
        if not state.request.reuses_cache:
            return
        if self._texts is None or not state.history.output_tokens:
            return
        text = state.drafting.written
        if text is None:
            text = state.drafting.written = WrittenText(state.history)
        self._texts.write(text, state.history, state.request.tenant, is_whole=is_whole)

    def check_integrity(self) -> None:
        """Raise AssertionError where the index of past outputs contradicts itself."""
        if self._texts is not None:
            self._texts.check_integrity()

    def _compare(self, state: RequestState, remembered: RememberedProposal) -> None:
        """Learn from a remembered proposal as its tokens come true, or one does not."""
        tokens, at = remembered.proposal.tokens, remembered.at
        acceptance = self._records.acceptance(state, remembered.drafter, remembered.proposal.grade)
        while remembered.compared < len(tokens) and at + remembered.compared < state.history.size:
            position = remembered.compared
            is_right = self._is_right(state, at + position, tokens[position])
            acceptance.add_one(position, accepted=is_right)
            if not is_right:
                break
            remembered.compared += 1
        else:
            if remembered.compared < len(tokens):
                return
        del state.drafting.remembered[remembered.drafter]

    def _is_right(self, state: RequestState, at: int, token: int) -> bool:
        """Whether the token that came at an index of the text is the one that was proposed."""
        if self._synthetic is not None:
            return self._synthetic.accepts(state.sampling.seed, at - state.history.prompt_tokens)
        return state.history.token(at) == token


def rows_by_depth(requests: Sequence[DraftRequest]) -> list[int]:
    """Rows of the draft model's decodes: all catch up at once, then one row for each that goes on."""
    deepest = max(request.limit for request in requests)
    first = sum(request.tokens.size - request.held for request in requests)
    return [first, *(sum(request.limit > depth for request in requests) for depth in range(1, deepest))]


def _legal(state: RequestState, proposed: Sequence[Found]) -> Sequence[Found]:
    """Proposals as far as the request's grammar lets them come."""
    constraint = state.sampling.constraint
    if constraint is None:
        return proposed
    lengths = [constraint.accepted(state.history, (), found.proposal.tokens) for found in proposed]
    return [
        Found(found.drafter, found.proposal.shortened(length))
        for found, length in zip(proposed, lengths, strict=True)
        if length
    ]


def _agree(tokens: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether two continuations are the same as far as both go."""
    length = min(len(tokens), len(others))
    return tokens[:length] == others[:length]


def _id(state: RequestState) -> int:
    return sequence_of(state).id
