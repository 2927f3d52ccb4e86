"""Faults strike by a seed, and leave behind what native ones do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptBoundary, PromptLayout, SpeculativePosition
from forerun.core.request import FinishReason, Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.segment import SegmentHeader
from forerun.core.step import (
    ClearSequence,
    FailureKind,
    ForkSequence,
    KvOperation,
    RestoreSegment,
    StepFailure,
    StepPlan,
    StepResult,
    StoreSegment,
    TruncateSequence,
    changed_sequence,
)
from forerun.testing import FAKE_SIZES, FakeDrafter, FakeRunner, FakeStore, Fault, FaultyRunner, SeededFaults
from forerun.testing.faults import HARMLESS, OF_DECODES
from tests.core.harness import VOCABULARY

ALWAYS = 1.0
CONFIG = SchedulerConfig(
    n_ctx=200,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    n_seq_max=6,
    speculation=2,
    draft_n_ctx=200,
    cache_ram=10_000,
    segment_tokens=16,
    segment_sizes=FAKE_SIZES,
)


class Bench:
    """Two requests on a runner whose steps are struck when the test says so."""

    def __init__(self, faults: SeededFaults, config: SchedulerConfig = CONFIG) -> None:
        self.scheduler = Scheduler(config, VOCABULARY)
        drafter = FakeDrafter(config.draft_n_ctx, VOCABULARY.size, 1.0)
        self.fake = FakeRunner(config.n_ctx, VOCABULARY.size, drafter=drafter, store=FakeStore(config.cache_ram))
        self.faults = faults
        self.slept: list[float] = []
        self.runner = FaultyRunner(self.fake, faults, self.scheduler.request_of, sleep=self.slept.append)
        self.ends: dict[str, FinishReason] = {}
        self.add("a", 1)
        self.add("b", 2)

    def add(self, name: str, first: int) -> None:
        prompt = PromptLayout.of_text([first, *range(8)])
        self.scheduler.add(Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=30)))

    def step(self, rate: float) -> FailureKind | None:
        self.faults.rate = rate
        plan = self.scheduler.schedule(0.0)
        result = self.runner.execute(plan)
        for delta in self.scheduler.update(plan, result):
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta.finish_reason
        self.scheduler.check_integrity()
        self.check_memory()
        return None if result.failure is None else result.failure.kind

    def check_memory(self) -> None:
        """What is not about to be cleared is what the bookkeeping says."""
        pool = self.scheduler.pool
        changing = {changed_sequence(operation) for operation in pool.pending_operations} | pool.quarantined
        for sequence_id in set(range(self.scheduler.config.n_seq_max)) - changing:
            assert self.fake.memory.held(sequence_id) == pool.target_cells.held(sequence_id)

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step(0.0)


def only(fault: Fault, culprits: float = 0.0, most_culprits: int = 1) -> SeededFaults:
    return SeededFaults(1, 0.0, kinds=[fault], culprits=culprits, most_culprits=most_culprits)


def strikes(seed: int) -> list[tuple[str, str]]:
    """What strikes 200 steps of one run, and when."""
    faults = SeededFaults(seed, 0.2, culprits=0.0)
    bench, struck = Bench(faults), []
    for index in range(60):
        before = faults.counts.copy()
        bench.step(0.2)
        struck += [(str(index), str(fault)) for fault in faults.counts - before]
    return struck


def test_equal_seeds_strike_alike_and_others_otherwise() -> None:
    assert strikes(1) == strikes(1)
    assert strikes(1) != strikes(2)


@pytest.mark.parametrize("fault", sorted(OF_DECODES))
def test_a_fault_of_nobody_s_passes_and_both_requests_end_well(fault: Fault) -> None:
    bench = Bench(only(fault))
    bench.step(0.0)
    bench.step(ALWAYS)
    assert bench.faults.counts[fault] == 1
    for _ in range(3):  # those who were struck are spared until they are past it
        bench.step(ALWAYS if bench.scheduler.stats.waiting else 0.0)
    bench.run()
    assert bench.ends == {"a": FinishReason.LENGTH, "b": FinishReason.LENGTH}


@pytest.mark.parametrize("fault", sorted(OF_DECODES))
def test_a_culprit_is_struck_until_it_ends_and_the_other_one_ends_well(fault: Fault) -> None:
    bench = Bench(only(fault, culprits=1.0))
    bench.step(0.0)
    bench.step(ALWAYS)
    (culprit,) = bench.faults.culprits
    bench.run()
    other = "b" if culprit == "a" else "a"
    assert bench.ends == {culprit: FinishReason.ERROR, other: FinishReason.LENGTH}
    assert bench.faults.counts[fault] > 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.NOT_BEGUN, FailureKind.FAILED),
        (Fault.ABORTED, FailureKind.ABORTED),
        (Fault.NO_ROOM, FailureKind.NO_ROOM),
        (Fault.LATE, FailureKind.FAILED),
    ],
)
def test_a_failed_step_says_which_way_it_failed(fault: Fault, kind: FailureKind) -> None:
    assert Bench(only(fault)).step(ALWAYS) is kind


@pytest.mark.parametrize(("fault", "rows"), [(Fault.NOT_BEGUN, 0), (Fault.HALFWAY, 9), (Fault.LATE, 16)])
def test_a_failed_decode_has_written_nothing_or_some_or_all(fault: Fault, rows: int) -> None:
    bench = Bench(only(fault))
    bench.step(ALWAYS)
    assert bench.fake.memory.used == rows


def test_a_draft_model_that_does_nothing_fails_no_step() -> None:
    bench = Bench(only(Fault.DRAFT))
    while not bench.faults.counts:
        assert bench.step(ALWAYS) is None
    assert bench.fake.drafter is not None
    bench.run()
    assert set(bench.ends.values()) == {FinishReason.LENGTH}


def test_a_slow_step_takes_longer_and_is_done() -> None:
    bench = Bench(only(Fault.SLOW))
    assert bench.step(ALWAYS) is None
    assert sum(bench.slept) > 0
    assert bench.fake.rows > 0


def test_a_copy_that_is_not_made_is_not_counted_on() -> None:
    bench = Bench(only(Fault.STORE))
    while not bench.faults.counts:
        bench.step(ALWAYS)
    bench.run()
    tiers = bench.scheduler.pool.tiers
    assert tiers is not None
    assert bench.fake.store is not None
    at_hand = {segment.header.key for segment in tiers.segments() if segment.is_at_hand}
    assert isinstance(bench.fake.store, FakeStore)
    assert at_hand == bench.fake.store.host.keys()


def test_steps_without_rows_have_nothing_that_a_decode_s_fault_could_strike() -> None:
    faults = SeededFaults(1, ALWAYS, kinds=sorted(OF_DECODES))
    assert faults.strike(StepPlan(0.0), lambda _: None) is None
    assert not faults.counts


def test_harmless_faults_fail_no_step() -> None:
    bench = Bench(SeededFaults(1, ALWAYS, kinds=sorted(HARMLESS)))
    for _ in range(40):
        assert bench.step(ALWAYS) is None


# --- operations that fail ----------------------------------------------------------

AT_TWO = SpeculativePosition(target=2, draft=2)
SEGMENT = SegmentHeader(
    key="segment",
    parent="",
    scope="",
    start=PromptBoundary.START,
    stop=PromptBoundary(2, 2),
    content=PromptLayout.of_text([1, 2]).segments,
    draft_stop=0,
)
RESTORE = RestoreSegment(1, SEGMENT.key, SpeculativePosition(0, 0), SpeculativePosition(target=2, draft=0))


def struck(
    fault: Fault, operations: Sequence[KvOperation], kind: FailureKind | None = None
) -> tuple[StepResult, FakeRunner]:
    """A step with one operation that fails, on a runner whose own decodes fail as `kind` says. Ids 0 and 1 hold four
    tokens each."""
    store, own = FakeStore(), None if kind is None else StepFailure(kind, "the runner's own")
    fake = FakeRunner(100, VOCABULARY.size, store=store, faults=lambda _: own)
    for sequence_id in (0, 1):
        fake.memory.append(sequence_id, [1, 2, 3, 4], 0)
    faults = SeededFaults(1, ALWAYS, kinds=[fault])
    result = FaultyRunner(fake, faults, lambda _: None).execute(StepPlan(0.0, operations=tuple(operations)))
    assert faults.counts == {fault: 1}
    return result, fake


@pytest.mark.parametrize("kind", [None, *FailureKind])
@pytest.mark.parametrize(
    ("fault", "operations"),
    [
        (Fault.FORK, (ClearSequence(1), ForkSequence(0, 1, AT_TWO))),
        (Fault.TRUNCATE, (TruncateSequence(1, AT_TWO), ClearSequence(0))),
        (Fault.RESTORE, (ClearSequence(1), RESTORE)),
    ],
)
def test_after_an_operation_that_failed_nothing_is_kept_whatever_else_fails(
    fault: Fault, operations: Sequence[KvOperation], kind: FailureKind | None
) -> None:
    result, _ = struck(fault, operations, kind)
    assert result.failure == StepFailure(FailureKind.FAILED, f"injected: {fault}")
    assert result.kept == {}


def test_a_request_whose_fork_failed_in_a_step_that_would_have_failed_anyway_begins_with_nothing() -> None:
    bench = Bench(only(Fault.FORK), replace(CONFIG, n_seq_max=2, max_num_seqs=2))
    for _ in range(3):
        bench.step(0.0)
    bench.scheduler.abort("a", 0.0)
    bench.add("c", 2)  # no id is free: a's prefix is cleared, and b's forked into that id
    bench.fake.faults = lambda _: StepFailure(FailureKind.NO_ROOM, "the runner's own")
    bench.step(ALWAYS)
    assert bench.faults.counts == {Fault.FORK: 1}
    bench.fake.faults = None
    bench.run()
    assert bench.ends == {"b": FinishReason.LENGTH, "c": FinishReason.LENGTH}


@pytest.mark.parametrize(
    ("fault", "operations"),
    [
        (Fault.FORK, (ClearSequence(1), ForkSequence(0, 1, AT_TWO), StoreSegment(1, SEGMENT))),
        (Fault.RESTORE, (ClearSequence(1), RESTORE, ForkSequence(1, 2, AT_TWO), StoreSegment(2, SEGMENT))),
    ],
)
def test_nothing_is_stored_of_what_an_operation_that_failed_was_to_give(
    fault: Fault, operations: Sequence[KvOperation]
) -> None:
    result, fake = struck(fault, operations)
    assert result.stored == {SEGMENT.key: 0}
    assert isinstance(fake.store, FakeStore)
    assert not fake.store.host


def test_what_is_cleared_after_an_operation_that_failed_is_stored_again() -> None:
    """It holds nothing of the failed one by then."""
    again = (ClearSequence(1), ForkSequence(0, 1, AT_TWO), StoreSegment(1, SEGMENT))
    result, fake = struck(Fault.TRUNCATE, (TruncateSequence(1, AT_TWO), *again))
    assert result.stored[SEGMENT.key] > 0
    assert fake.memory.held(1) == 2
