"""The scheduler: who runs, from which cached prefix, with which rows; and what becomes of the results.

    add ─► waiting ──admit (lookup, fork or take over, or wait for a prefix being computed)──► running ──► finished
              ▲                                                                                  │
              └── preempted (no cells left), or rebuilt after a failed step ─────────────────────┘

Pure: time comes in with `schedule` and in results, randomness with the request's seed. One thread calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from forerun.core.adapters import AdapterSet, require_known, scope_of
from forerun.core.admission import Admission
from forerun.core.allocation import DraftAllocator, FixedDraftAllocator, GainAllocator
from forerun.core.cache_report import CacheLookup, CacheReport
from forerun.core.config import MODEL_DRAFTER, SchedulerConfig
from forerun.core.costs import LiveCosts, StepCosts
from forerun.core.drafting import GuardedDrafter, NgramDrafter
from forerun.core.engine_limits import EngineLimits
from forerun.core.origins import TARGET, Origins
from forerun.core.planner import BatchPlanner, PrefillDemand
from forerun.core.pool import SequencePool
from forerun.core.prefix import ReusablePrefix
from forerun.core.prompt import PromptLayout
from forerun.core.radix import PrefixTree
from forerun.core.recompute import RecomputeCost
from forerun.core.records import FORCED
from forerun.core.request import FinishReason, OutputDelta, Request
from forerun.core.running import RequestState, sequence_of
from forerun.core.segment import StoredSegment
from forerun.core.speculation import DraftPlanner, Drafts
from forerun.core.step import (
    DecodeRow,
    Drafter,
    KvOperation,
    MediaRows,
    PrefillRows,
    SequenceResult,
    StepFailure,
    StepPlan,
    StepResult,
    Vocabulary,
    changed_sequence,
)
from forerun.core.step_budget import StepBudget, StepSoFar
from forerun.core.stored import KvSegment, Tier
from forerun.core.suffix import SuffixIndex
from forerun.core.synthetic import RepeatingDrafter
from forerun.core.tiers import PrefixTiers
from forerun.core.turns import AdapterTurns
from forerun.core.value import retention
from forerun.errors import InvalidRequestError, StepFailedError

_STORES_BESIDE, _STORES_ALONE = 1, 8
"""Segments of idle prefixes copied to host memory in a step: each takes a few milliseconds."""
_KILOCELL = 1000
_ROW_AND_CELL_MS = 0.0007
"""What a foreign cell costs a decoded row where costs were not measured (design/llama-facts.md)."""
RESERVED_NAMES = frozenset({MODEL_DRAFTER, "mtp", FORCED, TARGET})
"""Names that no drafter may take."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A look at the scheduler between two steps."""

    running: int
    waiting: int
    cached_prefixes: int
    used_cells: int
    total_cells: int
    host_bytes: int = 0
    """KV in host memory."""
    host_limit: int = 0
    disk_bytes: int = 0
    disk_limit: int = 0
    stored_segments: int = 0
    preemptions: int = 0
    """Running requests that had to give their cells back, so far."""
    quarantines: int = 0
    """Sequences whose content a failed step left unknown, so far."""
    evicted_prefixes: int = 0
    """Idle prefixes that left the KV memory, so far."""


class Scheduler:
    """Decides steps for one target (and at most one draft) model."""

    def __init__(
        self,
        config: SchedulerConfig,
        vocabulary: Vocabulary,
        *,
        costs: StepCosts | None = None,
        pace: LiveCosts | None = None,
        lookups: Sequence[Drafter] | None = None,
        stored: Iterable[StoredSegment] = (),
    ) -> None:
        """`costs`: what steps cost; drafts are allocated by it, None drafts fixed lengths. `pace`: where that is None,
        what the target's decodes cost, if known: steps keep to the target latency by one of the two. `lookups`:
        drafters that need no model; None: `own_lookups`. `stored`: what the store found on disk.

        Raises ValueError for names that clash.
        """
        self.config = config
        self.costs = costs
        self._vocabulary = vocabulary
        self._limits = EngineLimits(
            vocabulary_size=vocabulary.size,
            adapters=config.adapters,
            fixed_drafts=config.speculation if costs is None else 0,
            accepts_at_random=config.synthetic_acceptance is not None,
        )
        self.pool = SequencePool(
            config.n_seq_max,
            cells=config.n_ctx,
            draft_cells=config.draft_n_ctx,
            memory=config.memory,
            draft_memory=config.draft_memory,
            min_prefix_similarity=config.min_prefix_similarity,
            min_prefix_tokens=config.min_prefix_tokens,
            tiers=self._tiers if config.cache_ram and config.reuse_prefixes else None,
        )
        if self.pool.tiers is not None:
            self.pool.tiers.adopt(stored)
        self._turns = AdapterTurns(lambda: BatchPlanner(quantum=config.prefill_quantum))
        self._pace = costs.target if costs else pace
        self.budget = StepBudget(
            self._pace,
            config.target_itl_ms,
            max_rows=config.max_num_batched_tokens,
            rows_beside_decode=config.prefill_rows_beside_decode,
        )
        self._drafting = DraftPlanner(
            config,
            self.pool,
            _allocator(config, costs),
            _guarded(_lookups(config, vocabulary, costs) if lookups is None else lookups, vocabulary.size),
            costs,
            vocabulary.size,
        )
        self._requests: dict[str, RequestState] = {}
        self._running: dict[int, RequestState] = {}
        """By sequence id, in order of admission: the oldest first."""
        self._admission = Admission(config, self.pool, self._running)
        self._preemptions = 0

    def _tiers(self, tree: PrefixTree[KvSegment], emit: Callable[[KvOperation], None]) -> PrefixTiers:
        config = self.config
        cost = RecomputeCost.from_curve(self.costs.target.curve) if self.costs else RecomputeCost()
        return PrefixTiers(
            tree,
            emit,
            Tier(config.cache_ram, retention(config.retention)),
            Tier(config.cache_disk, retention(config.retention)),
            sizes=config.segment_sizes,
            model_key=config.model_key,
            memory=config.memory,
            segment_tokens=config.segment_tokens,
            prefill_ms=cost.ms_per_token if self.costs else None,
        )

    # --- requests ----------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequestError, naming field, limit and value, for one that cannot be served."""
        self._check(request)
        is_synthetic = self.config.synthetic_acceptance is not None
        scope = self.scope_of(request.tenant, request.params.adapter_set)
        reuses = request.reuses_cache and self.config.reuse_prefixes
        state = RequestState(
            request, self._vocabulary, self.config.n_ctx, scope=scope, is_synthetic=is_synthetic, reuses_cache=reuses
        )
        self._requests[request.id] = state
        self._admission.append(state)

    def scope_of(self, tenant: str, adapters: AdapterSet = ()) -> str:
        """What KV of a tenant, computed with some adapters, is found under. Raises InvalidRequestError for adapters
        that are not known."""
        require_known(adapters, self.config.adapters)
        return scope_of(tenant, adapters, self.config.adapters)

    def _check(self, request: Request) -> None:
        prompt, n_ctx = request.prompt, self.config.n_ctx
        if request.id in self._requests:
            raise InvalidRequestError("id", f"request {request.id!r} is already running")
        if len(self._admission) >= self.config.max_queue:
            raise InvalidRequestError("queue", f"{len(self._admission)} requests wait already; try again later")
        if not prompt.logical_tokens:
            raise InvalidRequestError("prompt", "is empty; it needs at least one token")
        if prompt.logical_tokens > n_ctx:
            raise InvalidRequestError(
                "prompt",
                f"has {prompt.logical_tokens} tokens, but the context holds {n_ctx}; shorten it or raise n_ctx",
            )
        if request.params.grammar is not None and request.constraint is None:
            # Answering as if there were none is the worst that can be done.
            raise InvalidRequestError("grammar", "cannot be enforced by this engine; leave it out")
        self._limits.check_token_ids("prompt", [int(s.tokens.max()) for s in prompt.segments if not s.is_media])
        self._limits.check(request.params)

    def abort(self, request_id: str, now: float) -> OutputDelta | None:
        """End a request between two steps, keeping what it computed as a reusable prefix. None: it is not there."""
        state = self._requests.get(request_id)
        if state is None:
            return None
        return self._finish(state, state.delta("", (), None, FinishReason.ABORT, now))

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: requests are there, or memory waits for operations."""
        return bool(self._requests) or self.pool.has_work

    @property
    def has_disk_tier(self) -> bool:
        """Whether prefixes outlive the engine."""
        return self.pool.tiers is not None and self.config.cache_disk > 0

    @property
    def stats(self) -> SchedulerStats:
        cells = self.pool.target_cells
        stats = SchedulerStats(
            len(self._running),
            len(self._admission),
            self.pool.idle_ids,
            cells.used,
            self.config.n_ctx,
            preemptions=self._preemptions,
            quarantines=self.pool.quarantines,
            evicted_prefixes=self.pool.evictions,
        )
        tiers = self.pool.tiers
        if tiers is None:
            return stats
        return replace(
            stats,
            host_bytes=tiers.host.used,
            host_limit=tiers.host.capacity,
            disk_bytes=tiers.disk.used,
            disk_limit=tiers.disk.capacity,
            stored_segments=len(tiers),
        )

    # --- the cache ----------------------------------------------------------

    def explain(self, request_id: str) -> CacheReport | None:
        """Why no more of a request's prompt was reused; None for one that is unknown or long ago."""
        return self._admission.reports.of(request_id)

    def look_up(self, prompt: PromptLayout, scope: str = "") -> CacheLookup:
        """How much of a prompt would be reused now, from where; changes nothing."""
        self._admission.promise_outputs()
        return self._admission.reports.look_up(prompt, scope)

    def pin(self, prompt: PromptLayout, scope: str, until: float) -> int:
        """Keep what is stored of a prompt in host memory until then; how many tokens were pinned."""
        return self.pool.pin(prompt, scope, until)

    def clear_cache(self, scope: str | None = None) -> int:
        """Forget all idle prefixes (of a scope's tenant, with any adapters), wherever they are; how many sequences and
        stored segments."""
        return self.pool.clear_idle(scope)

    # --- deciding a step ----------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """The next step. Empty when there is nothing to do."""
        self.pool.retry_quarantined()
        self._tick(now)
        self._admission.admit(now)
        if self._running:  # before rows are chosen: what it takes counts
            self.pool.store_some(_STORES_BESIDE)
        plan = self._plan_turn(now)
        while not (plan.decode or plan.prefill) and len(self._running) > 1:
            self._preempt_youngest()
            plan = self._plan_turn(now)
        is_idle = not (plan.decode or plan.prefill)
        if is_idle:
            self.pool.store_some(_STORES_ALONE)
        is_waiting = is_idle and self._admission.is_fetching
        # Taken only now: a plan that was given up must not take the operations it queued with it.
        return replace(plan, operations=self.pool.take_operations(), waits_for_store=is_waiting)

    def _tick(self, now: float) -> None:
        tiers = self.pool.tiers
        if tiers is not None:
            tiers.now = now
            tiers.unpin_expired()

    def _plan_turn(self, now: float) -> StepPlan:
        """Rows of the requests whose turn it is: a decode applies one set of adapters to all of its rows.

        Where those can do nothing (a media span finds no cells, say) it is the next ones' turn.
        """
        if not self.config.adapters:
            return self._plan_rows(now, ())
        plan = StepPlan(now)
        for adapters in self._sets_in_turn():
            plan = self._plan_rows(now, adapters)
            if plan.decode or plan.prefill:
                self._turns.served(adapters)
                break
        return plan

    def _sets_in_turn(self) -> list[AdapterSet]:
        suspect = self._suspect()
        running = self._running.values()
        return [suspect.adapters] if suspect else self._turns.in_turn([state.adapters for state in running])

    def _plan_rows(self, now: float, adapters: AdapterSet) -> StepPlan:
        states = self._in_this_step(adapters)
        ready = self._ready(states)
        while ready and not self.pool.make_room(len(ready)):
            self._preempt_youngest()
            states = self._in_this_step(adapters)
            ready = self._ready(states)
        others = [state for state in states if not _is_ready(state)] if len(ready) < len(states) else []
        so_far = StepSoFar(
            len(ready),
            self.pool.target_cells.used,
            is_waited_for=bool(ready) or self._decodes_wait(adapters),
            turns=len({state.adapters for state in self._running.values()}) if self.config.adapters else 1,
        )
        drafts = self._plan_drafts(ready, others, self._with_copies(so_far))
        so_far = replace(so_far, other_ms=self._drafting.model_ms(drafts))
        fills = self._drafting.fills(states, drafts, *self._fill_bounds(so_far))
        so_far = replace(
            so_far,
            rows=self._within_free_cells(drafts, len(ready)),
            other_ms=so_far.other_ms + self._drafting.filling_ms(fills),
        )
        prefill = self._plan_prefill(others, so_far, self._turns.planner(adapters))
        decode = tuple([self._decode_row(state, drafts) for state in ready])
        return StepPlan(now, (), tuple(fills), tuple(drafts.requests), decode, tuple(prefill), adapters)

    def _with_copies(self, so_far: StepSoFar) -> StepSoFar:
        """With the time that the copies queued so far will take."""
        if self.pool.tiers is None:
            return so_far
        copies_ms = self.pool.tiers.rates.copies_ms(self.pool.pending_operations)
        return replace(so_far, other_ms=so_far.other_ms + copies_ms)

    def _fill_bounds(self, so_far: StepSoFar) -> tuple[int, float]:
        """Rows and milliseconds that filling the draft's memory may take: half of what is left, beside prompts."""
        with_copies = self._with_copies(so_far)
        return self.budget.prefill_rows(with_copies), self.budget.left_ms(with_copies) / 2

    def _decodes_wait(self, adapters: AdapterSet) -> bool:
        """Whether others, with other adapters, wait for their next token while a step takes its time."""
        if not self.config.adapters:
            return False
        return any(state.adapters != adapters and _is_ready(state) for state in self._running.values())

    def _suspect(self) -> RequestState | None:
        return next((state for state in self._running.values() if state.is_suspect), None)

    def _in_this_step(self, adapters: AdapterSet) -> list[RequestState]:
        """Running requests with these adapters, in order of sequence id; a suspect of a failed step runs alone."""
        if (suspect := self._suspect()) is not None:
            return [suspect]
        states = [self._running[key] for key in sorted(self._running)]
        return [state for state in states if state.adapters == adapters] if self.config.adapters else states

    @staticmethod
    def _ready(states: list[RequestState]) -> list[RequestState]:
        return [state for state in states if _is_ready(state)]

    def _plan_drafts(self, ready: list[RequestState], others: list[RequestState], so_far: StepSoFar) -> Drafts:
        """Drafts of a step; prompts still to be computed keep one quantum, or half of the rows that are left."""
        spare = self.config.max_num_batched_tokens - len(ready)
        if not others:
            return self._drafting.plan(ready, spare, room_ms=self.budget.left_ms(so_far))
        kept = min(self.config.prefill_quantum, (spare + 1) // 2)
        other_rows = min(sum(state.remaining for state in others), self.budget.prefill_rows(so_far))
        room_ms = self.budget.left_ms(so_far)
        return self._drafting.plan(ready, self.budget.draft_rows(so_far, kept), other_rows, room_ms=room_ms)

    def _within_free_cells(self, drafts: Drafts, ready: int) -> int:
        """Rows of decode and drafts together; drafts that would find no cells are dropped."""
        rows = drafts.rows
        if not rows or self.pool.make_room(ready + rows):
            return ready + rows
        drafts.clear()
        return ready

    def _decode_row(self, state: RequestState, drafts: Drafts) -> DecodeRow:
        sequence_id = sequence_of(state).id
        found = drafts.proposed.get(sequence_id) if drafts.proposed else None
        row = DecodeRow(
            sequence_id, state.history.last, state.native_position(state.computed), state.sampling, state.output_left
        )
        if found is None:
            return row
        drafted = found.proposal
        return replace(row, drafts=drafted.tokens, drafter=found.drafter, grade=drafted.grade, origins=drafted.origins)

    def _plan_prefill(
        self, states: list[RequestState], so_far: StepSoFar, planner: BatchPlanner
    ) -> list[PrefillRows | MediaRows]:
        if not states:
            return []
        demands = [self._demand(state) for state in states]
        wanted = min(self.budget.prefill_rows(self._with_copies(so_far)), sum(demand.rows for demand in demands))
        wanted = so_far.rows + max(wanted, *(demand.rows for demand in demands if demand.whole), 0)
        if not self.pool.make_room(wanted):
            self.pool.make_room(self.pool.available_cells)
        free = self.pool.target_cells.free - so_far.rows
        demands = [demand for demand in demands if not demand.whole or demand.rows <= free]
        # Asked again: making room may have queued copies.
        granted = planner.share(demands, min(self.budget.prefill_rows(self._with_copies(so_far)), free))
        return [self._prefill_rows(self._running[key], rows) for key, rows in granted.items()]

    def _demand(self, state: RequestState) -> PrefillDemand:
        media = state.next_media()
        if media is not None:
            rows = media.logical_tokens
            return PrefillDemand(sequence_of(state).id, rows, whole=True, weight=self.budget.media_rows(rows))
        return PrefillDemand(sequence_of(state).id, state.chunk_end() - state.computed)

    @staticmethod
    def _prefill_rows(state: RequestState, rows: int) -> PrefillRows | MediaRows:
        end = state.computed + rows
        position = state.native_position(state.computed)
        sampling = state.sampling if end == state.history.size else None
        media = state.next_media()
        if media is not None:
            return MediaRows(sequence_of(state).id, media, position, sampling)
        return PrefillRows(sequence_of(state).id, state.history.slice(state.computed, end), position, sampling)

    def _preempt_youngest(self) -> None:
        """Give up the cells of the request admitted last; it goes on later, from its tokens, exactly where it was."""
        sequence_id = next(reversed(self._running))
        state = self._running.pop(sequence_id)
        self._release(state)
        self._admission.put_back(state)
        self._preemptions += 1

    # --- learning what came of it ----------------------------------------------------------

    def update(self, plan: StepPlan, result: StepResult) -> list[OutputDelta]:
        """Commit a step's results; returns what each request may show, in order of the plan's rows."""
        now = plan.now + result.elapsed
        self.pool.held_from = dict(result.held_from)
        if self.pool.tiers is not None:
            self._tick(now)
            self.pool.tiers.learn(plan, result, now)
        if result.failure is not None:
            return self._recover(plan, result.failure, now, is_blameless=bool(result.unrestorable))
        for sequence_id, held in result.draft_held.items():
            self.pool.draft_cells.resize(sequence_id, held)
        sequences = result.sequences
        self._learn_costs(plan, result)
        self._charge_idle(plan)
        deltas = [self._commit_decode(row, sequences[row.sequence_id], now) for row in plan.decode]
        for rows in plan.prefill:
            if rows.sampling is not None:
                deltas.append(self._commit_tokens(rows.sequence_id, sequences[rows.sequence_id], now))
            elif (progress := self._commit_prefill(rows)) is not None:
                deltas.append(progress)
        return deltas

    def _charge_idle(self, plan: StepPlan) -> None:
        """Idle cells cost all that is computed, prompts too: every row's attention walks over them."""
        rows, cells = len(plan.decode) + _prefill_rows(plan), self.pool.target_cells.used
        if not rows or self.pool.tiers is None:
            return
        if self.costs is None:
            self.pool.charge(rows * _ROW_AND_CELL_MS)
            return
        predict = self.costs.target.predict
        self.pool.charge((predict(rows, cells + _KILOCELL) - predict(rows, cells)) / _KILOCELL)

    def _commit_prefill(self, rows: PrefillRows | MediaRows) -> OutputDelta | None:
        state = self._running[rows.sequence_id]
        count = rows.tokens.size if isinstance(rows, PrefillRows) else rows.media.logical_tokens
        state.computed += count
        self.pool.target_cells.append(rows.sequence_id, count)
        self._store_checkpoint(state)
        return state.progress()

    def _store_checkpoint(self, state: RequestState) -> None:
        if state.computed in state.checkpoints:
            self.pool.store(sequence_of(state).id, state.layout(state.computed), state.scope, state.request.id)

    def _learn_costs(self, plan: StepPlan, result: StepResult) -> None:
        """Costs, and what drafting saved or lost: before the step's own tokens and cells are counted."""
        if self._pace is None:
            return
        drafted = sum(result.sequences[row.sequence_id].drafted for row in plan.decode)
        plain_rows = len(plan.decode) + _prefill_rows(plan)
        if self.costs is not None:
            self._count_savings(plan, result, self.costs.target, plain_rows, drafted)
            self._drafting.learn_costs(plan, result.times)
        self.budget.learn(plan, plain_rows + drafted, self.pool.target_cells.used, result.times)

    def _count_savings(
        self, plan: StepPlan, result: StepResult, pace: LiveCosts, plain_rows: int, drafted: int
    ) -> None:
        cells = self.pool.target_cells.used
        first_ms, next_ms = (pace.predict(rows, cells) for rows in (plain_rows, len(plan.decode)))
        has_drafted = drafted > 0 or bool(plan.draft_fills)
        for row in plan.decode:
            # Without drafts the step's prefill would be done once, not beside every one of the tokens.
            plain_ms = first_ms + (len(result.sequences[row.sequence_id].tokens) - 1) * next_ms
            drafting = self._running[row.sequence_id].drafting
            drafting.plain_ms += plain_ms
            if has_drafted:
                drafting.saved_ms += plain_ms - result.elapsed * 1e3

    def _commit_decode(self, row: DecodeRow, result: SequenceResult, now: float) -> OutputDelta:
        state = self._running[row.sequence_id]
        proposed = self._drafting.origins(row, result.drafted) if result.drafted else ()
        delta = self._commit_tokens(row.sequence_id, result, now, proposed)
        if result.drafted or state.drafting.remembered:
            self._drafting.learn(state, row, result)
        return delta

    def _commit_tokens(
        self, sequence_id: int, result: SequenceResult, now: float, proposed: Origins = ()
    ) -> OutputDelta:
        state = self._running[sequence_id]
        in_memory = state.history.size + len(result.tokens) - 1
        self.pool.target_cells.append(sequence_id, in_memory - state.computed)
        state.computed = in_memory
        self._store_checkpoint(state)
        state.is_suspect = False
        delta = state.take_tokens(result, self._vocabulary, now, proposed)
        if delta.finish_reason is not None:
            return self._finish(state, delta)
        self._drafting.read(state)
        return delta

    def _finish(self, state: RequestState, delta: OutputDelta) -> OutputDelta:
        del self._requests[state.request.id]
        self._drafting.read(state, is_whole=True)
        if state.sequence is None:
            self._admission.remove(state)
        else:
            del self._running[state.sequence.id]
            self._release(state)
        return delta

    def _release(self, state: RequestState) -> None:
        """Give a sequence back with all it holds that belongs to the request: nothing after a stop."""
        keep = min(state.computed, state.history.size)
        layout = state.layout(keep)
        reusable = ReusablePrefix(layout, scope=state.scope) if state.reuses_cache else None
        self.pool.release(sequence_of(state), reusable, state.request.id)
        self._forget_memory(state)

    def _forget_memory(self, state: RequestState) -> None:
        self._admission.look_again()
        state.sequence = None
        state.computed = state.promised = 0

    # --- failed steps ----------------------------------------------------------

    def _recover(
        self, plan: StepPlan, failure: StepFailure, now: float, *, is_blameless: bool = False
    ) -> list[OutputDelta]:
        """Rebuild everyone in a failed step from their tokens, one at a time; who fails alone again gets the error.

        Where stored KV could not be restored nobody is to blame: it is not used again, and all go on together.
        """
        touched, evaluated = _touched(plan), set(plan.sequence_ids())
        states = [self._running[key] for key in touched if key in self._running]
        suspects = [state for state in states if sequence_of(state).id in evaluated]
        culprit = suspects[0] if len(suspects) == 1 and suspects[0].is_suspect else None
        for sequence_id in touched:
            self.pool.quarantine_idle(sequence_id)
        for state in reversed(states):
            del self._running[sequence_of(state).id]
            self.pool.quarantine(sequence_of(state))
            self._forget_memory(state)
            self._admission.put_back(state)
        if is_blameless:
            return []
        for state in suspects:
            state.is_suspect = state.drafting.is_off = True
        if culprit is None:
            return []
        error = StepFailedError(f"{failure.kind.value}: {failure.message}")
        return [self._finish(culprit, culprit.delta("", (), None, FinishReason.ERROR, now, error))]

    # --- looking in ----------------------------------------------------------

    def request_of(self, sequence_id: int) -> str | None:
        """The id of the request that runs on a sequence."""
        state = self._running.get(sequence_id)
        return state.request.id if state else None

    def check_integrity(self) -> None:
        """Raise AssertionError where the scheduler, the pool and the requests contradict each other."""
        self.pool.check_integrity()
        self._drafting.check_integrity()
        assert len(self._requests) == len(self._running) + len(self._admission)
        for sequence_id, state in self._running.items():
            assert sequence_of(state).id == sequence_id
            assert state.computed == self.pool.target_cells.held(sequence_id)
            assert state.remaining >= 1, f"{state!r} has nothing left to compute"
            assert self.pool.draft_cells.held(sequence_id) <= state.history.size
        for state in self._admission:
            assert state.sequence is None
            assert state.computed == 0

    def __repr__(self) -> str:
        return f"Scheduler({len(self._running)} running, {len(self._admission)} waiting, {self.pool!r})"


def own_lookups(config: SchedulerConfig, *, passes_edits: bool = True) -> list[Drafter]:
    """Forerun's drafters that need no model: the request's own text, and past outputs."""
    own_text = NgramDrafter(passes_edits=passes_edits)
    if not config.speculation or not config.suffix_tokens:
        return [own_text]
    return [own_text, SuffixIndex(config.suffix_tokens)]


def _guarded(lookups: Sequence[Drafter], vocabulary_size: int) -> list[Drafter]:
    """Drafters that are somebody else's kept from doing harm, names looked at."""
    names = [drafter.name for drafter in lookups]
    if len({*names, *RESERVED_NAMES}) < len(names) + len(RESERVED_NAMES):
        raise ValueError(f"drafters have names of their own, other than {sorted(RESERVED_NAMES)}; got {names}")
    own = (NgramDrafter, SuffixIndex)
    return [drafter if isinstance(drafter, own) else GuardedDrafter(drafter, vocabulary_size) for drafter in lookups]


def _lookups(config: SchedulerConfig, vocabulary: Vocabulary, costs: StepCosts | None) -> list[Drafter]:
    """Forerun's own; under synthetic acceptance anything, as long as something is drafted."""
    if config.synthetic_acceptance is None or config.draft_n_ctx:
        return own_lookups(config, passes_edits=costs is not None)
    return [RepeatingDrafter(vocabulary.end_tokens)]


def _allocator(config: SchedulerConfig, costs: StepCosts | None) -> DraftAllocator:
    """By measured gain where costs are known, else a fixed length."""
    if costs is None:
        return FixedDraftAllocator(config.speculation)
    return GainAllocator(costs.target, costs.draft, replays=config.memory.has_state)


def _is_ready(state: RequestState) -> bool:
    """One text token behind: a decode row."""
    return state.history.size - state.computed == 1 and (not state.has_media or state.next_media() is None)


def _prefill_rows(plan: StepPlan) -> int:
    """Rows of prompt text in a step; media are not counted."""
    return sum(rows.tokens.size for rows in plan.prefill if isinstance(rows, PrefillRows))


def _touched(plan: StepPlan) -> list[int]:
    """Sequences whose memory a failed step leaves unknown, each once, in order."""
    changed = [changed_sequence(operation) for operation in plan.operations]
    ids = [sequence_id for sequence_id in changed if sequence_id is not None]
    ids += [fill.sequence_id for fill in plan.draft_fills]
    return list(dict.fromkeys([*ids, *plan.sequence_ids()]))
