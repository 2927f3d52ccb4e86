"""Faults strike by a seed, and leave behind what native ones do."""

from __future__ import annotations

import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptLayout
from forerun.core.request import FinishReason, Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import FailureKind, StepPlan
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

    def __init__(self, faults: SeededFaults) -> None:
        self.scheduler = Scheduler(CONFIG, VOCABULARY)
        drafter = FakeDrafter(CONFIG.draft_n_ctx, VOCABULARY.size, 1.0)
        self.fake = FakeRunner(CONFIG.n_ctx, VOCABULARY.size, drafter=drafter, store=FakeStore(CONFIG.cache_ram))
        self.faults = faults
        self.slept: list[float] = []
        self.runner = FaultyRunner(self.fake, faults, self.scheduler.request_of, sleep=self.slept.append)
        self.ends: dict[str, FinishReason] = {}
        for name, first in (("a", 1), ("b", 2)):
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
        return None if result.failure is None else result.failure.kind

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
