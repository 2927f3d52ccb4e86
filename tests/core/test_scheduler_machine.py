"""Random schedules on the FakeRunner: whatever arrives, is cancelled or fails, answers are those of the naive oracle.

The invariants are those of design/scheduler.md section 6 that apply to the resident engine. A longer hunt:
FORERUN_MACHINE_EXAMPLES=10000 pytest tests/core/test_scheduler_machine.py --timeout 7200
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forerun.core.config import SchedulerConfig, Verification
from forerun.core.costs import CostCurve, LiveCosts
from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.memory import MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment, Tokens
from forerun.core.request import FinishReason, ForcedTokens, OutputDelta, Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import FailureKind, SequenceFault, StepFailure, StepPlan, changed_sequence
from forerun.errors import GrammarFailedError
from forerun.testing import (
    FAKE_SIZES,
    FakeConstraint,
    FakeDrafter,
    FakeEncoder,
    FakeRunner,
    FakeStore,
    FakeVocabulary,
    Fault,
    FaultyRunner,
    SeededFaults,
    naive_answer,
)
from forerun.testing.faults import Strike

VOCABULARY = FakeVocabulary()

texts = st.lists(st.sampled_from([0, 0, 0, 1, 3, 4]), min_size=1, max_size=24)
images = st.builds(
    PromptSegment.media,
    identity=st.sampled_from(["image-a", "image-b"]),
    logical_tokens=st.sampled_from([3, 7]),
    native_positions=st.sampled_from([1, 3]),
)
layouts = st.one_of(
    texts.map(PromptLayout.of_text),
    st.builds(lambda head, n: PromptLayout.of_text([0] * n + head), texts, st.integers(0, 12)),
    st.builds(
        lambda head, image, tail: PromptLayout([PromptSegment.text(head), image, PromptSegment.text(tail)]),
        st.lists(st.sampled_from([0, 1]), max_size=3),
        images,
        st.lists(st.sampled_from([0, 1]), max_size=6),
    ),
)
parameters = st.builds(
    SamplingParams,
    max_tokens=st.one_of(st.none(), st.integers(1, 12)),
    temperature=st.sampled_from([0.0, 0.0, 1.5]),
    seed=st.integers(0, 3),
    top_p=st.sampled_from([1.0, 1.0, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    logit_bias=st.sampled_from([{}, {}, {1: 3.0}]),
    stop=st.sampled_from([(), (), ("ab",), ("aé", "bb")]),
    ignore_eos=st.booleans(),
    speculation=st.sampled_from([None, None, 0, 2]),
    logprobs=st.sampled_from([None, None, 2]),
    adapters=st.sampled_from([{}, {}, {}, "a", {"a": 0.5}, "b", {"a": 1.0, "b": -2.0}]),
)
kinds = st.sampled_from([MemoryKind(), MemoryKind(window=5), MemoryKind(has_state=True)])
configs = st.builds(
    lambda seqs, spare_ids, rows, splits_media, **limits: SchedulerConfig(
        max_num_seqs=seqs,
        n_seq_max=seqs + spare_ids,
        max_num_batched_tokens=max(rows, seqs),
        splits_media=splits_media and not limits["memory"].has_state,
        **limits,
    ),
    n_ctx=st.sampled_from([24, 40, 96]),
    spare_ids=st.integers(0, 5),
    seqs=st.integers(1, 4),
    rows=st.sampled_from([4, 8, 64]),
    prefill_rows_beside_decode=st.sampled_from([1, 4]),
    prefill_quantum=st.sampled_from([1, 4]),
    target_itl_ms=st.sampled_from([None, 1.0, 12.0]),
    speculation=st.sampled_from([0, 1, 3, 6]),
    suffix_tokens=st.sampled_from([0, 64, 1000]),
    draft_n_ctx=st.sampled_from([0, 12, 96]),
    min_prefix_tokens=st.sampled_from([1, 4, 64]),
    memory=kinds,
    draft_memory=kinds,
    cache_ram=st.sampled_from([0, 400, 2000, 10**6, 10**6]),
    cache_disk=st.sampled_from([0, 12_000, 10**6]),
    segment_tokens=st.sampled_from([2, 5, 512]),
    retention=st.sampled_from(["value", "lru", "fifo"]),
    segment_sizes=st.just(FAKE_SIZES),
    verification=st.sampled_from(Verification),
    splits_media=st.booleans(),
    adapters=st.just({"a": "content of a", "b": "content of b"}),
)


class Hook:
    """Says that the same token must come, whatever there is; it is now and then right."""

    def forced(self, output: Tokens, limit: int) -> list[int]:
        return [0] * (limit if output.size % 3 else 0)


hooks = st.sampled_from([None, None, Hook()])


def alternating(output: tuple[int, ...]) -> set[int]:
    """Never the same token twice; it may end after three, and must after eight."""
    following = {0, 1, 3, 4} - set(output[-1:]) if len(output) < 8 else set[int]()
    return following | ({2} if len(output) >= 3 else set())


GRAMMAR = Grammar(GrammarKind.REGEX, "what it says does not matter: constraints say what comes")
constraints = st.sampled_from(
    [
        None,
        None,
        None,
        FakeConstraint(VOCABULARY, alternating),
        FakeConstraint(VOCABULARY, alternating, problem_after=4),
        FakeConstraint.of_sentences(VOCABULARY, [(0, 0, 0, 1, 0), (0, 0, 3, 4, 3, 4), (1,), (1, 1)]),
    ]
)


class FaultOnDemand(SeededFaults):
    """Strikes once for each time it is told to."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.wanted: Fault | None = None

    def draw(self, possible: Iterable[Strike], requests: Sequence[str]) -> Strike | None:  # noqa: ARG002
        strike = next((strike for strike in possible if strike.fault is self.wanted), None)
        if strike is not None:
            self.wanted = None
        return strike


class SchedulerMachine(RuleBasedStateMachine):
    """One scheduler, one FakeRunner, any order of arrivals, steps, aborts and faults."""

    @initialize(
        config=configs,
        quality=st.sampled_from([0.0, 0.7, 1.0]),
        delay=st.sampled_from([0, 3]),
        curve=st.sampled_from([None, None, CostCurve((1, 2, 8), (5.0, 9.0, 20.0))]),
        encoding=st.sampled_from([0, 0, 2, 9]),
    )
    def start(
        self, config: SchedulerConfig, quality: float, delay: int, curve: CostCurve | None, encoding: int
    ) -> None:
        self.curve = curve
        self.encoding = encoding
        self.unreadable: set[str] = set()
        """Identities of spans that cannot be encoded."""
        self.config = config
        self.quality = quality
        self.store_fails = ""
        self.store = FakeStore(config.cache_ram, self.store_faults, delay)
        self.start_engine()
        self.requests: dict[str, Request] = {}
        self.deltas: dict[str, list[OutputDelta]] = {}
        self.poisoned: dict[str, FailureKind | None] = {}
        """How every step with a request in it fails; None: that request's rows alone."""
        self.struck: dict[str, int] = {}
        """How many failed steps a request was part of: the third one, alone, ends it."""
        self.fail_next: FailureKind | None = None
        self.behind: set[str] = set()
        """Requests whose readers are."""
        self.steps = 0
        self.now = 0.0

    def start_engine(self) -> None:
        """With empty memories, and whatever is on disk."""
        config, drafter = self.config, None
        if config.draft_n_ctx:
            drafter = FakeDrafter(config.draft_n_ctx, VOCABULARY.size, self.quality, config.draft_memory)
        pace = None if self.curve is None else LiveCosts(self.curve)
        self.scheduler = Scheduler(config, VOCABULARY, pace=pace, stored=self.store.scan())
        self.fake = FakeRunner(
            config.n_ctx,
            VOCABULARY.size,
            drafter=drafter,
            faults=self.faults,
            kind=config.memory,
            store=self.store,
            adapters=config.adapters,
            encoder=FakeEncoder(self.encoding, self.unreadable.__contains__),
        )
        self.strikes = FaultOnDemand()
        self.runner = FaultyRunner(self.fake, self.strikes, self.scheduler.request_of, sleep=lambda _: None)

    def store_faults(self, kind: str, _key: str) -> bool:
        failed = self.store_fails == kind
        if failed:
            self.store_fails = ""
        return failed

    @rule(identity=st.sampled_from(["image-a", "image-b"]))
    def break_or_mend_an_image(self, identity: str) -> None:
        """From now on it cannot be encoded, or can again."""
        self.unreadable ^= {identity}

    @rule(kind=st.sampled_from(["put", "get", "persist", "fetch"]))
    def fail_in_the_store(self, kind: str) -> None:
        """The next time, once."""
        self.store_fails = kind

    @precondition(lambda self: len(self.finished()) == len(self.requests))
    @rule(content=st.sampled_from(["content of a", "another content"]))
    def start_again(self, content: str) -> None:
        """All but the disk is gone, as after kill -9; an adapter may have been trained again."""
        self.answers_are_the_oracle_s()
        self.config = replace(self.config, adapters={**self.config.adapters, "a": content})
        self.store = self.store.restarted()
        self.start_engine()

    def faults(self, plan: StepPlan) -> StepFailure | dict[int, SequenceFault] | None:
        kind, self.fail_next = self.fail_next, None
        in_step = {sequence_id: self.scheduler.request_of(sequence_id) for sequence_id in plan.sequence_ids()}
        kinds = [kind, *(self.poisoned.get(key or "") for key in in_step.values())]
        failing = next((kind for kind in kinds if kind is not None), None)
        if failing is not None:
            return StepFailure(failing, "on demand")
        sampled = {row.sequence_id for row in (*plan.decode, *plan.prefill) if row.sampling is not None}
        return {
            sequence_id: SequenceFault("on demand", is_own=len(key or "") % 2 == 0)
            for sequence_id, key in in_step.items()
            if sequence_id in sampled and key in self.poisoned
        }

    @rule(
        layout=layouts,
        params=parameters,
        tenant=st.sampled_from(["", "", "x"]),
        forced=hooks,
        priority=st.sampled_from([0, 0, 0, 1, -3]),
        deadline=st.sampled_from([None, None, 5.0, 60.0]),
        reuses=st.sampled_from([True, True, True, False]),
        constraint=constraints,
    )
    def arrive(
        self,
        layout: PromptLayout,
        params: SamplingParams,
        tenant: str = "",
        forced: ForcedTokens | None = None,
        priority: int = 0,
        deadline: float | None = None,
        reuses: bool = True,  # noqa: FBT001 (rules are called by name)
        constraint: FakeConstraint | None = None,
    ) -> None:
        if layout.logical_tokens > self.config.n_ctx or len(self.requests) - len(self.finished()) > 12:
            return
        name = f"r{len(self.requests)}"
        if constraint is not None:
            params = replace(params, grammar=GRAMMAR)
        request = Request(
            id=name,
            prompt=layout,
            params=params,
            arrival=self.now,
            tenant=tenant,
            forced=forced,
            priority=priority,
            deadline=None if deadline is None else self.now + deadline,
            reuses_cache=reuses,
            reports_progress=True,
            constraint=constraint,
        )
        self.requests[request.id] = request
        self.deltas[request.id] = []
        self.scheduler.add(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The same prompt again, or an answer continued: what caches are for."""
        earlier = data.draw(st.sampled_from(sorted(self.requests)))
        tokens = [token for delta in self.deltas[earlier] for token in delta.tokens]
        prompt = self.requests[earlier].prompt
        more = data.draw(st.sampled_from([[], tokens, [*tokens, 0, 1], [1]]))
        reuses = data.draw(st.sampled_from([True, True, False]))
        self.arrive(prompt.extended([PromptSegment.text(more)]), data.draw(parameters), reuses=reuses)

    @rule()
    def step(self) -> None:
        self.steps += 1
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        assert sum(1 + len(row.drafts) for row in plan.decode) <= max(
            self.config.max_num_batched_tokens, len(plan.decode)
        )
        assert [row.sequence_id for row in plan.decode] == sorted(row.sequence_id for row in plan.decode)
        for sequence_id in plan.sequence_ids():
            request_id = self.scheduler.request_of(sequence_id)
            assert request_id is not None
            assert self.requests[request_id].params.adapter_set == plan.adapters
        in_step = [(sequence_id, self.scheduler.request_of(sequence_id) or "") for sequence_id in plan.sequence_ids()]
        result = self.runner.execute(plan)
        if result.failure is not None:
            assert result.failure.message.startswith(("on demand", "injected")) or result.unrestorable, result.failure
        for sequence_id, key in in_step:
            self.struck[key] = self.struck.get(key, 0) + (result.failure is not None or sequence_id in result.faults)
        for delta in self.scheduler.update(plan, result):
            assert delta.request_id not in self.behind
            self.deltas[delta.request_id].append(delta)

    @rule(steps=st.integers(2, 12))
    def several_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.memory_is_what_the_bookkeeping_says()

    @precondition(lambda self: len(self.finished()) < len(self.requests))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        open_ids = sorted(self.requests.keys() - self.finished())
        delta = self.scheduler.abort(data.draw(st.sampled_from(open_ids)), self.now)
        assert delta is not None
        self.deltas[delta.request_id].append(delta)
        assert self.scheduler.abort(delta.request_id, self.now) is None

    @precondition(lambda self: len(self.finished()) < len(self.requests))
    @rule(data=st.data())
    def fall_behind(self, data: st.DataObject) -> None:
        """A reader: its request is paused."""
        request_id = data.draw(st.sampled_from(sorted(self.requests.keys() - self.finished())))
        self.scheduler.pause(request_id)
        self.behind.add(request_id)

    @precondition(lambda self: self.behind)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.behind)))
        self.scheduler.resume(request_id)
        self.behind.discard(request_id)

    @rule(kind=st.sampled_from(FailureKind))
    def fail_the_next_step(self, kind: FailureKind) -> None:
        self.fail_next = kind

    @rule(fault=st.sampled_from(Fault))
    def strike(self, fault: Fault) -> None:
        """The next step that this fault can strike."""
        self.strikes.wanted = fault

    @precondition(lambda self: len(self.finished()) < len(self.requests))
    @rule(data=st.data(), kind=st.sampled_from([*FailureKind, None]))
    def poison(self, data: st.DataObject, kind: FailureKind | None) -> None:
        """From now on every step with this request in it fails, or (None) its rows alone do."""
        self.poisoned[data.draw(st.sampled_from(sorted(self.requests.keys() - self.finished())))] = kind

    def finished(self) -> set[str]:
        return {key for key, deltas in self.deltas.items() if deltas and deltas[-1].finish_reason is not None}

    @invariant()
    def bookkeeping_is_whole(self) -> None:
        self.scheduler.check_integrity()

    @invariant()
    def memory_is_what_the_bookkeeping_says(self) -> None:
        pool = self.scheduler.pool
        changing = {changed_sequence(operation) for operation in pool.pending_operations} | pool.quarantined
        for sequence_id in set(range(self.config.n_seq_max)) - changing:
            assert self.fake.memory.held(sequence_id) == pool.target_cells.held(sequence_id)
            if self.fake.drafter is not None:
                assert self.fake.drafter.memory.held(sequence_id) == pool.draft_cells.held(sequence_id)
        if not changing:
            assert self.fake.memory.used == pool.target_cells.used

    @invariant()
    def who_waits_is_in_order_of_priority(self) -> None:
        waiting = [state.request.priority for state in self.scheduler._admission]
        assert waiting == sorted(waiting, reverse=True)

    @invariant()
    def tiers_hold_what_the_bookkeeping_says(self) -> None:
        tiers = self.scheduler.pool.tiers
        if tiers is None or self.scheduler.pool.pending_operations:
            return
        kept = list(tiers.segments())
        at_hand = {segment.header.key for segment in kept if segment.is_at_hand}
        assert at_hand == self.store.host.keys()
        assert self.store.nbytes <= self.config.cache_ram
        on_disk = {segment.header.key for segment in kept if segment.disk is not None}
        assert not (on_disk ^ self.store.disk.keys()) - self.store.in_transit

    @invariant()
    def answers_are_the_oracle_s(self) -> None:
        for key in self.finished():
            if key in getattr(self, "checked", set()):
                continue
            self.check_answer(key)
            self.checked = {*getattr(self, "checked", set()), key}

    def check_answer(self, key: str) -> None:
        request, deltas = self.requests[key], self.deltas[key]
        last = deltas[-1]
        expected = naive_answer(
            request.prompt, request.params, VOCABULARY, self.config.n_ctx, self.config.adapters, request.constraint
        )
        tokens = tuple(token for delta in deltas for token in delta.tokens)
        text = "".join(delta.text for delta in deltas)
        assert tokens == expected.tokens[: len(tokens)]
        assert expected.text.startswith(text)
        assert last.usage is not None
        assert last.usage.output_tokens == len(tokens)
        assert last.usage.cached_tokens <= last.usage.prompt_tokens * request.reuses_cache
        assert last.usage.cached_tokens < last.usage.prompt_tokens == request.prompt.logical_tokens
        assert last.usage.accepted_tokens <= last.usage.drafted_tokens
        done = [delta.prefill_done for delta in deltas if delta.prefill_done is not None]
        assert done == sorted(set(done))
        assert all(0 < computed < total == request.prompt.logical_tokens for computed, total in done)
        if isinstance(last.error, GrammarFailedError):
            assert (tokens, text, last.finish_reason) == (expected.tokens, expected.text, expected.finish_reason)
        elif last.finish_reason is FinishReason.ERROR:
            was_unreadable = last.error is not None and "cannot be encoded: on demand" in str(last.error)
            assert key in self.poisoned or self.struck.get(key, 0) > 2 or was_unreadable
        elif last.finish_reason is not FinishReason.ABORT:
            assert (tokens, text, last.finish_reason) == (expected.tokens, expected.text, expected.finish_reason)
            if request.params.logprobs is not None:
                reported = [entry.token for delta in deltas for entry in delta.logprobs or ()]
                assert tuple(reported) == tokens

    def teardown(self) -> None:
        """Everyone finishes within a bounded number of steps, and nothing leaks."""
        if not hasattr(self, "scheduler"):
            return
        for request_id in self.behind:
            self.scheduler.resume(request_id)
        self.behind.clear()
        open_requests = [self.requests[key] for key in self.requests.keys() - self.finished()]
        work = sum(self.config.n_ctx + request.prompt.logical_tokens + self.encoding for request in open_requests)
        for _ in range(20 + 4 * work):
            if not self.scheduler.has_work:
                break
            self.step()
            self.memory_is_what_the_bookkeeping_says()
            self.scheduler.check_integrity()
        assert not self.scheduler.has_work, f"still at work: {self.scheduler!r}"
        assert self.finished() == self.requests.keys()
        self.answers_are_the_oracle_s()
        pool = self.scheduler.pool
        assert pool.free_ids + pool.idle_ids == self.config.n_seq_max
        assert pool.target_cells.used == pool.target_cells.held_together(list(pool.idle))
        assert not self.fake.encoder.kept


SchedulerMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("FORERUN_MACHINE_EXAMPLES", "100")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
test_any_schedule_gives_the_oracle_s_answers = SchedulerMachine.TestCase
