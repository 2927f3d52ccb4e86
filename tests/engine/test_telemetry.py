"""What the engine counts of its steps and requests."""

from __future__ import annotations

from forerun.core.config import SchedulerConfig
from forerun.core.history import TokenHistory
from forerun.core.origins import Origins
from forerun.core.prompt import PromptLayout, SpeculativePosition, as_tokens
from forerun.core.request import FinishReason, OutputDelta, SamplingParams, Usage
from forerun.core.sampling import SamplingContext
from forerun.core.stats import SchedulerStats
from forerun.core.step import (
    DecodeRow,
    DropSegment,
    FailureKind,
    ForkSequence,
    PrefillRows,
    SequenceResult,
    StepFailure,
    StepPlan,
    StepResult,
    StepTimes,
)
from forerun.engine.telemetry import STEP_SECONDS, DraftCounts, EngineTelemetry, Telemetry
from forerun.errors import StepFailedError
from forerun.testing import FakeRunner
from tests.core.harness import Harness
from tests.engine.support import fake_engine

STATS = SchedulerStats(1, 2, 3, 40, 64)
SAMPLING = SamplingContext(SamplingParams(), 0, frozenset(), TokenHistory(PromptLayout.of_text([1])))


def row(sequence_id: int, drafts: tuple[int, ...] = (), drafter: str = "", origins: Origins = ()) -> DecodeRow:
    return DecodeRow(sequence_id, 1, 5, SAMPLING, 10, drafts, drafter, origins=origins)


def verified(drafted: int, accepted: int) -> SequenceResult:
    return SequenceResult((7,) * (accepted + 1), drafted, accepted)


def counted(*steps: tuple[StepPlan, StepResult]) -> EngineTelemetry:
    telemetry = Telemetry("draft")
    for plan, result in steps:
        telemetry.count_step(plan, result)
    return telemetry.snapshot(STATS)


def counted_deltas(*deltas: OutputDelta) -> EngineTelemetry:
    telemetry = Telemetry("draft")
    telemetry.count_deltas(deltas)
    return telemetry.snapshot(STATS)


def test_a_step_counts_once_in_its_time_and_in_the_rows_of_each_kind() -> None:
    plan = StepPlan(0.0, decode=(row(1), row(2)), prefill=(PrefillRows(3, as_tokens([1] * 9), 0),))
    told = counted((plan, StepResult(0.02, {1: verified(0, 0), 2: verified(3, 1)})))
    assert told.step_seconds.counts[STEP_SECONDS.index(0.025)] == 1
    assert told.step_seconds.total == 0.02
    assert {kind: histogram.total for kind, histogram in told.rows.items()} == {"decode": 2, "draft": 3, "prefill": 9}
    assert {sum(histogram.counts) for histogram in (told.step_seconds, *told.rows.values())} == {1}
    assert told.computed_tokens == 9


def test_values_on_a_bound_count_below_it_and_those_above_all_bounds_last() -> None:
    plan = StepPlan(0.0, decode=(row(1),))
    told = counted(*((plan, StepResult(seconds, {1: verified(0, 0)})) for seconds in (0.001, 0.0011, 99.0)))
    assert told.step_seconds.counts == (1, 1, *[0] * (len(STEP_SECONDS) - 2), 1)


def test_drafts_are_counted_by_position_and_whoever_proposed_the_token() -> None:
    steps = [
        (StepPlan(0.0, decode=(row(1, (4, 4, 4), "ngram"),)), StepResult(0.01, {1: verified(3, 2)})),
        (StepPlan(0.0, decode=(row(1, (4,), "ngram"),)), StepResult(0.01, {1: verified(1, 0)})),
        (StepPlan(0.0, decode=(row(1),)), StepResult(0.01, {1: verified(2, 1)})),
        (StepPlan(0.0, decode=(row(1),)), StepResult(0.01, {1: verified(0, 0)})),
    ]
    assert counted(*steps).drafts == {
        "ngram": DraftCounts(proposed=(2, 1, 1), accepted=(1, 1, 0)),
        "draft": DraftCounts(proposed=(1, 1), accepted=(1, 0)),
    }


def test_each_part_of_a_chained_draft_is_its_own_drafters() -> None:
    chained = row(1, (4, 4, 4), "ngram", origins=(("forced", 1), ("ngram", 2)))
    told = counted((StepPlan(0.0, decode=(chained,)), StepResult(0.01, {1: verified(5, 4)})))
    assert told.drafts == {
        "forced": DraftCounts((1,), (1,)),
        "ngram": DraftCounts((0, 1, 1), (0, 1, 1)),
        "draft": DraftCounts((0, 0, 0, 1, 1), (0, 0, 0, 1, 0)),
    }


def test_however_different_drafts_are_what_is_held_of_them_stays_small_and_is_right() -> None:
    telemetry = Telemetry("draft")
    for own in range(1, 60):
        for accepted in range(own + 1):
            plan = StepPlan(0.0, decode=(row(1, (4,) * own, "suffix"),))
            telemetry.count_step(plan, StepResult(0.01, {1: verified(own, accepted)}))
    told = telemetry.snapshot(STATS).drafts["suffix"]
    assert sum(told.proposed) == sum(own * (own + 1) for own in range(1, 60))
    assert sum(told.accepted) == sum(accepted for own in range(1, 60) for accepted in range(own + 1))


def test_a_failed_step_counts_by_kind_and_without_rows() -> None:
    failed = StepResult(0.01, failure=StepFailure(FailureKind.NO_ROOM, "full"))
    told = counted((StepPlan(0.0, decode=(row(1),)), failed))
    assert told.failed_steps == {FailureKind.NO_ROOM.value: 1}
    assert sum(told.step_seconds.counts) == 1
    assert sum(told.rows["decode"].counts) == 0


def test_a_step_that_only_moves_memory_counts_its_operations_but_is_no_step_time() -> None:
    fork = ForkSequence(0, 1, SpeculativePosition(3, 3))
    result = StepResult(0.5, times=StepTimes(storing=0.002, restoring=0.2))
    told = counted((StepPlan(0.0, operations=(fork, fork, DropSegment("key"))), result))
    assert told.operations == {"fork": 2, "drop": 1}
    assert sum(told.step_seconds.counts) == 0
    assert (told.store_seconds.total, told.restore_seconds.total) == (0.002, 0.2)


def test_tokens_are_counted_by_who_came_up_with_them_and_cached_ones_by_where_they_were() -> None:
    usage = Usage(prompt_tokens=90, cached_tokens=60, cached_host_tokens=20, cached_disk_tokens=5, output_tokens=4)
    told = counted_deltas(
        OutputDelta("a", "", (1, 2, 3), origins=(("ngram", 2), ("target", 1))),
        OutputDelta("a", "", (4,), finish_reason=FinishReason.STOP, usage=usage, origins=(("target", 1),)),
    )
    assert told.output_tokens == {"ngram": 2, "target": 2}
    assert told.cached_tokens == {"resident": 35, "host": 20, "disk": 5}
    assert told.finished == {"stop": 1}
    assert told.errors == {}


def test_errors_are_counted_by_their_class() -> None:
    error = StepFailedError("it broke")
    told = counted_deltas(OutputDelta("a", "", (), finish_reason=FinishReason.ERROR, error=error))
    assert (told.finished, told.errors) == ({"error": 1}, {"StepFailedError": 1})


def test_a_snapshot_does_not_change_when_counting_goes_on() -> None:
    telemetry = Telemetry("draft")
    before = telemetry.snapshot(STATS)
    telemetry.count_step(StepPlan(0.0, decode=(row(1),)), StepResult(0.01, {1: verified(0, 0)}))
    assert before == Telemetry("draft").snapshot(STATS)
    assert telemetry.snapshot(STATS) != before


def test_an_engine_tells_what_it_has_done() -> None:
    with fake_engine() as engine:
        (output,) = engine.generate("abab", SamplingParams(max_tokens=5, ignore_eos=True), raw=True)
        told = engine.telemetry()
    assert told.computed_tokens == 4
    assert told.output_tokens == {"target": 5}
    assert told.finished == {output.finish_reason: 1}
    assert sum(told.step_seconds.counts) == 5
    assert told.rows["decode"].total == 4
    assert told.stats.running == 0


def test_preemptions_and_evicted_prefixes_are_counted() -> None:
    harness = Harness(SchedulerConfig(n_ctx=24, max_num_seqs=4, n_seq_max=8))
    for name in "ab":
        harness.add(name, [ord(name) % 20] * 8, SamplingParams(max_tokens=12))
    harness.run()
    assert harness.scheduler.stats.preemptions > 0
    assert harness.scheduler.stats.evicted_prefixes > 0
    assert harness.scheduler.stats.quarantines == 0


def test_sequences_of_a_failed_step_are_counted_as_quarantined() -> None:
    faults = iter([StepFailure(FailureKind.FAILED, "broken")])
    runner = FakeRunner(64, 20, faults=lambda _: next(faults, None))
    harness = Harness(SchedulerConfig(n_ctx=64), runner)
    harness.add("a", [1, 2, 3])
    harness.run()
    assert harness.scheduler.stats.quarantines == 1
