"""The scheduler: who runs, from which cached prefix, with which rows; and what becomes of the results.

    add ─► waiting ──admit (lookup, fork or take over, or wait for a prefix being computed)──► running ──► finished
              ▲                                                                                  │
              └── preempted (no cells left), or rebuilt after a failed step ─────────────────────┘

Pure: time comes in with `schedule` and in results, randomness with the request's seed. One thread calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from forerun.core.adapters import AdapterSet, require_known, scope_of
from forerun.core.admission import Admission
from forerun.core.cache_report import CacheLookup, CacheReport
from forerun.core.config import SchedulerConfig
from forerun.core.costs import LiveCosts, StepCosts
from forerun.core.encoding import Encodings
from forerun.core.engine_limits import EngineLimits
from forerun.core.leases import Leases
from forerun.core.lookups import allocator_for, default_lookups, guarded
from forerun.core.origins import Origins
from forerun.core.parking import Parking
from forerun.core.planner import BatchPlanner, PrefillDemand
from forerun.core.pool import SequencePool
from forerun.core.prompt import PromptLayout
from forerun.core.radix import PrefixTree
from forerun.core.recompute import RecomputeCost
from forerun.core.recovery import Recovery
from forerun.core.request import FinishReason, OutputDelta, Request
from forerun.core.running import RequestState, sequence_of
from forerun.core.segment import StoredSegment
from forerun.core.speculation import DraftPlanner, Drafts
from forerun.core.stats import SchedulerStats
from forerun.core.step import (
    DecodeRow,
    Drafter,
    KvOperation,
    MediaRows,
    PrefillRows,
    SequenceResult,
    StepPlan,
    StepResult,
    Vocabulary,
    media_rows,
    prompt_rows,
    tokens_of,
)
from forerun.core.step_budget import StepBudget, StepSoFar
from forerun.core.stored import KvSegment, Tier
from forerun.core.tiers import PrefixTiers
from forerun.core.turns import Turn, Turns
from forerun.core.value import retention
from forerun.errors import InvalidRequestError, StepFailedError

_STORES_BESIDE, _STORES_ALONE = 1, 8
"""Segments of idle prefixes copied to host memory in a step: each takes a few milliseconds."""
_LONG_STEP = 64
"""Rows of prompts: a step of fewer is not worth cutting short."""
_KILOCELL = 1000
_ROW_AND_CELL_MS = 0.0007
"""What a foreign cell costs a decoded row where costs were not measured (design/llama-facts.md)."""


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
        self._turns = Turns(lambda: BatchPlanner(quantum=config.prefill_quantum))
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
            allocator_for(config, costs),
            guarded(default_lookups(config, vocabulary, costs) if lookups is None else lookups, vocabulary.size),
            costs,
            vocabulary.size,
        )
        self._requests: dict[str, RequestState] = {}
        self._running: dict[int, RequestState] = {}
        """By sequence id, in order of admission: the oldest first."""
        self._admission = Admission(config, self.pool, self._running)
        self._leases = Leases(self.pool, self._admission, self._running)
        self._recovery = Recovery(self.pool, self._leases, self._running)
        self._parking = Parking(self.pool, self._leases, self._running)
        self._encodings = Encodings()
        self._paused: dict[str, RequestState] = {}
        self._arrivals = 0
        self.in_long_step: frozenset[str] = frozenset()
        """The requests with rows in the step that goes on, where it evaluates so much of prompts that cutting it short
        would save time. Any thread may look."""

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
        state.number = self._arrivals
        self._arrivals += 1
        self._requests[request.id] = state
        self._admission.add(state)

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

    def pause(self, request_id: str) -> None:
        """A request's reader is behind: from the next step on it gets nothing, until `resume`. All others go on."""
        state = self._requests.get(request_id)
        if state is not None:
            state.is_paused = True
            self._paused[request_id] = state

    def resume(self, request_id: str) -> None:
        """A paused request's reader has caught up."""
        state = self._paused.pop(request_id, None)
        if state is not None:
            state.is_paused = False
            self._admission.look_again()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: requests are there and not paused, or memory waits for operations."""
        return len(self._requests) > len(self._paused) or self.pool.has_work or self._encodings.has_work

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
            preemptions=self._parking.count,
            parked=self._admission.parked,
            paused=len(self._paused),
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
        self._make_way(now)
        self._encodings.ask(self._running.values())
        if self._running:  # before rows are chosen: what it takes counts
            self.pool.store_some(_STORES_BESIDE)
        plan = self._plan_turn(now)
        while not (plan.decode or plan.prefill) and len(self._running) > 1 and self._has_able:
            self._parking.park_one(1)
            plan = self._plan_turn(now)
        is_idle = not (plan.decode or plan.prefill)
        if is_idle:
            self.pool.store_some(_STORES_ALONE)
        is_waiting = is_idle and self._admission.is_fetching
        if sum(map(tokens_of, plan.prefill)) >= _LONG_STEP:
            self.in_long_step = frozenset(self._running[key].request.id for key in plan.sequence_ids())
        self._charge_idle(plan)
        # Taken only now: a plan that was given up must not take the operations it queued with it.
        return replace(
            plan,
            operations=self.pool.take_operations(),
            media=self._encodings.take_operations(),
            waits_for_store=is_waiting,
            waits_for_media=is_idle and self._encodings.is_busy,
        )

    def _make_way(self, now: float) -> None:
        """Requests whose readers are behind are parked where others could run in their place, and those of a lower
        priority where nothing else lets a more urgent one start."""
        while self._paused and self._admission.has_ready and (state := self._parking.paused()) is not None:
            self._parking.park(state)
            self._admission.admit(now)
        while (urgent := self._admission.stuck) is not None and (state := self._parking.below(urgent)) is not None:
            state.gave_way += 1
            self._parking.park(state)
            self._admission.admit(now)

    @property
    def _has_able(self) -> bool:
        """Whether a running request could take part in a step if there were cells."""
        return any(not state.is_paused and not self._encodings.holds_up(state) for state in self._running.values())

    def _tick(self, now: float) -> None:
        tiers = self.pool.tiers
        if tiers is not None:
            tiers.now = now
            tiers.unpin_expired()

    def _plan_turn(self, now: float) -> StepPlan:
        """Rows of the requests whose turn it is: a decode applies one set of adapters to all of its rows, and suspects
        of a failed step are tried among themselves.

        Where those can do nothing (a media span finds no cells, say) it is the next ones' turn.
        """
        if not self.config.adapters and not self._recovery.has_suspects:
            return self._plan_rows(now, Turn())
        plan = StepPlan(now)
        able = [state for state in self._running.values() if not state.is_paused]
        for turn in self._turns.in_turn(map(self._turn_of, able)):
            plan = self._plan_rows(now, turn)
            if plan.decode or plan.prefill:
                self._turns.served(turn)
                break
        return plan

    def _turn_count(self) -> int:
        """How many turns there are among running requests: each waits for all others."""
        if not self.config.adapters and not self._recovery.has_suspects:
            return 1
        return len({self._turn_of(state) for state in self._running.values() if not state.is_paused})

    @staticmethod
    def _turn_of(state: RequestState) -> Turn:
        return Turn(state.adapters, state.is_suspect)

    def _plan_rows(self, now: float, turn: Turn) -> StepPlan:
        states = self._in_this_step(turn)
        ready = self._ready(states)
        while ready and not self.pool.make_room(len(ready)):
            self._parking.park_one(len(ready) - self.pool.available_cells)
            states = self._in_this_step(turn)
            ready = self._ready(states)
        others = self._to_prefill(states) if len(ready) < len(states) else []
        priorities = [state.request.priority for state in self._running.values() if _is_ready(state)]
        so_far = StepSoFar(
            len(ready),
            self.pool.target_cells.used,
            is_waited_for=bool(ready) or self._decodes_wait(states),
            turns=self._turn_count(),
            priority=max(priorities, default=None),
            lowest_priority=min(priorities, default=None),
        )
        drafts = self._plan_drafts(ready, others, so_far)
        so_far = so_far.plus(ms=self._drafting.model_ms(drafts))
        fills = self._drafting.fills(states, drafts, partial(self._fill_bounds, so_far))
        rows = self._within_free_cells(drafts, len(ready)) - len(ready)
        so_far = so_far.plus(rows=rows, ms=self._drafting.filling_ms(fills))
        prefill = self._plan_prefill(others, so_far, self._turns.planner(turn))
        decode = tuple([self._decode_row(state, drafts) for state in ready])
        return StepPlan(now, (), tuple(fills), tuple(drafts.requests), decode, tuple(prefill), turn.adapters)

    def _with_copies(self, so_far: StepSoFar) -> StepSoFar:
        """With the time that the copies queued so far will take."""
        operations = self.pool.pending_operations
        if self.pool.tiers is None or not operations:
            return so_far
        return so_far.plus(ms=self.pool.tiers.rates.copies_ms(operations))

    def _fill_bounds(self, so_far: StepSoFar) -> tuple[int, float]:
        """Rows and milliseconds that filling the draft's memory may take: half of what is left, beside prompts."""
        with_copies = self._with_copies(so_far)
        return self.budget.prefill_rows(with_copies), self.budget.left_ms(with_copies) / 2

    def _decodes_wait(self, states: list[RequestState]) -> bool:
        """Whether others, in whose turn these are, wait for their next token while a step takes its time."""
        if len(states) == len(self._running):
            return False
        others = [state for state in self._running.values() if not (state.is_paused or state in states)]
        return any(map(_is_ready, others))

    def _in_this_step(self, turn: Turn) -> list[RequestState]:
        """Running requests that may share a step in a turn, in order of sequence id."""
        if turn.is_trial:
            return self._recovery.in_turn(turn.adapters)
        states = [self._running[key] for key in sorted(self._running)]
        if self._paused:
            states = [state for state in states if not state.is_paused]
        if not self.config.adapters and not self._recovery.has_suspects:
            return states
        return [state for state in states if self._turn_of(state) == turn]

    @staticmethod
    def _ready(states: list[RequestState]) -> list[RequestState]:
        return [state for state in states if _is_ready(state)]

    def _to_prefill(self, states: list[RequestState]) -> list[RequestState]:
        """Those whose prompts can go on; a media span has to be encoded first."""
        return [state for state in states if not _is_ready(state) and not self._encodings.holds_up(state)]

    def _plan_drafts(self, ready: list[RequestState], others: list[RequestState], so_far: StepSoFar) -> Drafts:
        """Drafts of a step; prompts still to be computed keep one quantum, or half of the rows that are left."""
        if not (self._drafting.is_on and ready):
            return Drafts()
        so_far = self._with_copies(so_far)
        spare = self.config.max_num_batched_tokens - len(ready)
        most = self._most_drafted(len(ready) + len(others))
        if not others:
            return self._drafting.plan(ready, min(spare, most), room_ms=self.budget.left_ms(so_far))
        kept = min(self.config.prefill_quantum, (spare + 1) // 2)
        other_rows = min(sum(state.remaining for state in others), self.budget.prefill_rows(so_far))
        room_ms = self.budget.left_ms(so_far)
        return self._drafting.plan(ready, min(self.budget.draft_rows(so_far, kept), most), other_rows, room_ms=room_ms)

    def _most_drafted(self, sampling: int) -> int:
        """Drafted tokens whose logits there is room for beside those of `sampling` sequences that get a token each."""
        rows = self.config.max_logit_rows
        return self.config.max_num_batched_tokens if rows is None else max(0, rows - sampling)

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
        wanted = min(
            self.budget.prompt_rows(self._with_copies(so_far), demands), sum(demand.rows for demand in demands)
        )
        wanted = so_far.rows + max(wanted, *(demand.rows for demand in demands if demand.whole), 0)
        if not self.pool.make_room(wanted):
            self.pool.make_room(self.pool.available_cells)
        free = self.pool.target_cells.free - so_far.rows
        demands = [demand for demand in demands if not demand.whole or demand.rows <= free]
        # Asked again: making room may have queued copies.
        rows = self.budget.prompt_rows(self._with_copies(so_far), demands)
        granted = planner.share(demands, min(rows, free))
        return [self._prefill_rows(self._running[key], rows) for key, rows in granted.items()]

    def _demand(self, state: RequestState) -> PrefillDemand:
        media = state.next_media()
        is_whole = media is not None and not self.config.splits_media
        rows = state.chunk_end() - state.computed if media is None else media.logical_tokens - state.media_done
        return PrefillDemand(
            sequence_of(state).id,
            rows,
            whole=is_whole,
            priority=state.request.priority,
            weight=self.budget.media_rows(rows) if is_whole else 0,
            left=state.remaining,
        )

    @staticmethod
    def _prefill_rows(state: RequestState, rows: int) -> PrefillRows | MediaRows:
        start = state.media_done
        end = state.computed + start + rows
        position = state.native_position(state.computed)
        sampling = state.sampling if end == state.history.size else None
        media = state.next_media()
        if media is not None:
            return MediaRows(sequence_of(state).id, media, position, start, start + rows, sampling)
        return PrefillRows(sequence_of(state).id, state.history.slice(state.computed, end), position, sampling)

    # --- learning what came of it ----------------------------------------------------------

    def update(self, plan: StepPlan, result: StepResult) -> list[OutputDelta]:
        """Commit a step's results; returns what each request may show, in order of the plan's rows."""
        self.in_long_step = frozenset()
        now = plan.now + result.elapsed
        self._encodings.learn(result.media_events)
        return self._learn_step(plan, result, now) + self._fail_unencoded(now)

    def _fail_unencoded(self, now: float) -> list[OutputDelta]:
        """End the requests whose media cannot be encoded, and nobody else's."""
        there = [(state, error) for state, error in self._encodings.failed() if self._is_there(state)]
        return [self._fail(state, f"media cannot be encoded: {error}", now) for state, error in there]

    def _is_there(self, state: RequestState) -> bool:
        return self._requests.get(state.request.id) is state

    def _learn_step(self, plan: StepPlan, result: StepResult, now: float) -> list[OutputDelta]:
        self.pool.held_from = dict(result.held_from)
        if self.pool.tiers is not None:
            self._tick(now)
            self.pool.tiers.learn(plan, result, now)
        if result.failure is not None:
            culprit = self._recovery.failed(plan, result)
            return [] if culprit is None else [self._fail(culprit, str(result.failure), now)]
        for sequence_id, held in result.draft_held.items():
            self.pool.draft_cells.resize(sequence_id, held)
        sequences = result.sequences
        self._learn_costs(plan, result)
        decoded = [row for row in plan.decode if row.sequence_id not in result.faults]
        deltas = [self._commit_decode(row, sequences[row.sequence_id], now) for row in decoded]
        for rows in plan.prefill:
            if rows.sampling is None:
                progress = self._commit_prefill(rows)
                deltas += [] if progress is None else [progress]
            elif rows.sequence_id not in result.faults:
                deltas.append(self._commit_tokens(rows.sequence_id, sequences[rows.sequence_id], now))
        return deltas + self._settle_faults(plan, result, now)

    def _settle_faults(self, plan: StepPlan, result: StepResult, now: float) -> list[OutputDelta]:
        """What became of sequences that failed in a step that was done for the others."""
        for sequence_id in result.draft_faults:
            if (state := self._running.get(sequence_id)) is not None:
                state.drafting.is_model_off = True
        ended: list[OutputDelta] = []
        for row in (*plan.decode, *plan.prefill) if result.faults else ():
            fault = result.faults.get(row.sequence_id)
            if fault is not None and (culprit := self._recovery.fault(row, fault)) is not None:
                ended.append(self._fail(culprit, fault.message, now))
        return ended

    def _charge_idle(self, plan: StepPlan) -> None:
        """Idle cells cost all that is computed, prompts too: every row's attention walks over them.

        Before the step, so that what it would pay too much for is gone by then: the cells of a long prompt's first rows
        are behind those of the prompt before it otherwise, and llama.cpp walks over all up to the last one in use.
        """
        rows, cells = len(plan.decode) + prompt_rows(plan), self.pool.target_cells.used
        if not rows or self.pool.tiers is None:
            return
        is_waited_for = bool(plan.decode)
        if self.costs is None:
            self.pool.charge(rows * _ROW_AND_CELL_MS, is_waited_for=is_waited_for)
            return
        predict = self.costs.target.predict
        ms = predict(rows, cells + _KILOCELL) - predict(rows, cells)
        self.pool.charge(ms / _KILOCELL, is_waited_for=is_waited_for)

    def _commit_prefill(self, rows: PrefillRows | MediaRows) -> OutputDelta | None:
        state = self._running[rows.sequence_id]
        self.pool.target_cells.append(rows.sequence_id, tokens_of(rows))
        if isinstance(rows, MediaRows) and not rows.is_last:
            state.media_done = rows.stop
            state.was_cut_short = False
            return None
        state.computed = self.pool.target_cells.held(rows.sequence_id)
        state.media_done = 0
        self._got_on(state)
        return state.progress()

    def _got_on(self, state: RequestState) -> None:
        """More of a request is computed."""
        self._recovery.got_on(state)
        if state.computed in state.checkpoints:
            self.pool.store(sequence_of(state).id, state.layout(state.computed), state.scope, state.request.id)

    def _learn_costs(self, plan: StepPlan, result: StepResult) -> None:
        """Costs, and what drafting saved or lost: before the step's own tokens and cells are counted."""
        if self._pace is None:
            return
        drafted = sum(one.drafted for one in result.sequences.values())
        if self.costs is not None:
            self._count_savings(plan, result, self.costs.target, drafted)
            self._drafting.learn_costs(plan, result.times)
        self.budget.learn(plan, drafted, self.pool.target_cells.used, result.times)

    def _count_savings(self, plan: StepPlan, result: StepResult, pace: LiveCosts, drafted: int) -> None:
        decodes, cells = len(plan.decode), self.pool.target_cells.used
        next_ms = pace.predict(decodes, cells)
        prompts = prompt_rows(plan) + self.budget.media_rows(media_rows(plan))
        first_ms = pace.predict(decodes + prompts, cells, logits=decodes)
        has_drafted = drafted > 0 or bool(plan.draft_fills)
        for row in plan.decode:
            if (found := result.sequences.get(row.sequence_id)) is None:
                continue
            # Without drafts the step's prefill would be done once, not beside every one of the tokens.
            plain_ms = first_ms + (len(found.tokens) - 1) * next_ms
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
        state.computed = state.history.size + len(result.tokens) - 1
        state.media_done = 0
        self.pool.target_cells.resize(sequence_id, state.computed)
        self._got_on(state)
        delta = state.take_tokens(result, self._vocabulary, now, proposed)
        if delta.finish_reason is not None:
            return self._finish(state, delta)
        self._drafting.read(state)
        return delta

    def _finish(self, state: RequestState, delta: OutputDelta) -> OutputDelta:
        del self._requests[state.request.id]
        self._paused.pop(state.request.id, None)
        self._recovery.forget(state)
        self._drafting.read(state, is_whole=True)
        self._leases.end(state)
        return delta

    def _fail(self, state: RequestState, message: str, now: float) -> OutputDelta:
        return self._finish(state, state.delta("", (), None, FinishReason.ERROR, now, StepFailedError(message)))

    # --- looking in ----------------------------------------------------------

    def request_of(self, sequence_id: int) -> str | None:
        """The id of the request that runs on a sequence."""
        state = self._running.get(sequence_id)
        return state.request.id if state else None

    def check_integrity(self) -> None:
        """Raise AssertionError where the scheduler, the pool and the requests contradict each other."""
        self.pool.check_integrity()
        self._drafting.check_integrity()
        self._recovery.check_integrity()
        self._encodings.check_integrity()
        assert len(self._requests) == len(self._running) + len(self._admission)
        for sequence_id, state in self._running.items():
            assert sequence_of(state).id == sequence_id
            assert state.computed + state.media_done == self.pool.target_cells.held(sequence_id)
            assert state.remaining >= 1, f"{state!r} has nothing left to compute"
            assert self.pool.draft_cells.held(sequence_id) <= state.text_history.size
        assert all(state.is_paused for state in self._paused.values())
        for state in self._admission:
            assert state.sequence is None
            assert state.computed == 0

    def __repr__(self) -> str:
        return f"Scheduler({len(self._running)} running, {len(self._admission)} waiting, {self.pool!r})"


def _is_ready(state: RequestState) -> bool:
    """One text token behind: a decode row."""
    return state.history.size - state.computed == 1 and (not state.has_media or state.next_media() is None)
