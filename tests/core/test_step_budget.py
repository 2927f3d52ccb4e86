"""Steps beside live decodes keep to a latency by what rows were measured to cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment, SpeculativePosition
from forerun.core.rates import CopyRates
from forerun.core.request import SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.segment import SegmentHeader
from forerun.core.step import (
    ClearSequence,
    MediaRows,
    PrefillRows,
    RestoreSegment,
    StepPlan,
    StepResult,
    StepTimes,
    StoreSegment,
)
from forerun.core.step_budget import AIM, READING_MS, SHORTEST_TARGET_MS, StepBudget, StepSoFar, default_target_ms
from forerun.testing import FAKE_SIZES, FakeRunner, FakeStore
from tests.core.harness import VOCABULARY, Harness

SMALL = CostCurve((1, 2, 4, 8, 16, 32, 64, 128), (8, 16, 27, 52, 105, 212, 329, 583))
LARGE = CostCurve((1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128), (36, 68, 96, 124, 178, 260, 328, 329, 570, 1009, 1767))
PART = CostCurve(SMALL.rows[:5], SMALL.ms[:5])
"""All that there was time for on a busy machine."""
GPU = CostCurve((1, 8, 64, 128), (10, 10.5, 14, 20))
TOOTHED = CostCurve((1, 15, 16, 17, 128), (10, 120, 90, 130, 900))


def budget(curve: CostCurve, target: float | None, *, rows: int = 512) -> StepBudget:
    return StepBudget(LiveCosts(curve), target, max_rows=rows, rows_beside_decode=128)


def beside(rows: int = 1, **so_far: float) -> StepSoFar:
    return StepSoFar(
        rows, 0, is_waited_for=True, other_ms=so_far.get("other_ms", 0.0), turns=int(so_far.get("turns", 1))
    )


@given(st.sampled_from([SMALL, LARGE, GPU, TOOTHED]), st.floats(20, 2000), st.integers(1, 40), st.floats(0, 300))
def test_a_step_is_as_large_as_the_target_allows_and_no_larger(
    curve: CostCurve, target: float, decode: int, other_ms: float
) -> None:
    use = budget(curve, target)
    so_far = beside(decode, other_ms=other_ms)
    rows, allowed = use.prefill_rows(so_far), use.allowed_ms(so_far)
    assert 1 <= rows <= 512 - decode
    assert rows == 1 or curve.predict(decode + rows) + other_ms <= allowed
    assert decode + rows == 512 or curve.predict(decode + rows + 1) + other_ms > allowed


def test_rows_of_prompts_are_not_charged_for_logits_they_do_not_have() -> None:
    priced = CostCurve(SMALL.rows, SMALL.ms, logit_ms=1.0)
    rows = budget(priced, 200).prefill_rows(beside(4))
    assert rows > budget(SMALL, 200).prefill_rows(beside(4)) + 4
    assert priced.predict(4 + rows, logits=4) <= AIM * 200 < priced.predict(5 + rows, logits=4)


def test_prompts_go_on_although_decodes_alone_take_longer_than_the_target() -> None:
    use = budget(SMALL, 100)
    rows = use.prefill_rows(beside(64))
    assert rows > 8
    assert SMALL.predict(64 + rows) <= 1.25 * SMALL.predict(64)


def test_where_nobody_waits_a_step_is_a_whole_batch() -> None:
    alone = StepSoFar(0, 0, is_waited_for=False, other_ms=1000)
    assert budget(SMALL, 50).prefill_rows(alone) == 512
    assert math.isinf(budget(SMALL, 50).allowed_ms(alone))


def test_steps_are_planned_a_little_shorter_than_the_target_because_some_take_longer() -> None:
    assert budget(SMALL, 400).allowed_ms(beside()) == AIM * 400 == 380


def test_of_two_sets_of_adapters_each_gets_half_of_the_time() -> None:
    assert budget(SMALL, 400).allowed_ms(beside(turns=2)) == AIM * 200


def test_without_measured_costs_a_step_holds_a_fixed_number_of_rows() -> None:
    unmeasured = StepBudget(None, 100, max_rows=512, rows_beside_decode=128)
    assert unmeasured.prefill_rows(beside(4)) == 128
    assert math.isinf(unmeasured.left_ms(beside(4)))
    with pytest.raises(ValueError, match="row limits are positive"):
        StepBudget(None, None, max_rows=0, rows_beside_decode=1)


@pytest.mark.parametrize(
    ("curve", "target"),
    [(SMALL, READING_MS), (LARGE, 329), (GPU, SHORTEST_TARGET_MS), (CostCurve((1,), (900,)), 900), (PART, READING_MS)],
)
def test_the_default_target_is_where_rows_are_cheap_and_readers_do_not_wait(curve: CostCurve, target: float) -> None:
    assert default_target_ms(curve, 512) == target
    assert budget(curve, None).target_ms == target


# --- in the scheduler ----------------------------------------------------------


def timed(target: float | None, *, curve: CostCurve = SMALL) -> Harness:
    """A harness whose steps take what the curve says."""
    config = SchedulerConfig(n_ctx=8192, target_itl_ms=target, min_prefix_tokens=4096)
    harness = Harness(config, FakeRunner(config.n_ctx, VOCABULARY.size, costs=StepCosts(LiveCosts(curve))))
    harness.scheduler = Scheduler(config, VOCABULARY, pace=LiveCosts(curve))
    return harness


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY.size, length)]


def step_until_first_token(harness: Harness, name: str) -> list[tuple[StepPlan, StepResult]]:
    steps = []
    while not harness.tokens(name):
        steps.append(harness.step())
    return steps


@pytest.mark.parametrize("target", [100.0, 200.0, 400.0])
def test_case_b1_a_long_prompt_does_not_stop_the_tokens_of_others(target: float) -> None:
    """A stream decodes while a long prompt arrives, and then a short one: gaps keep to the target, the short one is
    first, and the long one's first token comes when the curve says it can."""
    harness = timed(target)
    harness.add("stream", prompt(10), SamplingParams(max_tokens=2000))
    step_until_first_token(harness, "stream")
    harness.add("long", prompt(3000, 1))
    steps = [harness.step() for _ in range(3)]
    harness.add("short", prompt(20, 2))
    steps += step_until_first_token(harness, "short")
    assert not harness.tokens("long")
    steps += step_until_first_token(harness, "long")
    assert all(plan.decode for plan, _ in steps)
    assert max(result.elapsed for _, result in steps) * 1e3 <= 1.05 * target
    rows = budget(SMALL, target).prefill_rows(beside(1))
    predicted = 3000 / rows * SMALL.predict(rows + 1)
    assert sum(result.elapsed for _, result in steps) * 1e3 == pytest.approx(predicted, rel=0.15)


def test_a_more_urgent_prompt_makes_less_urgent_streams_wait_three_times_the_target_and_no_longer() -> None:
    def first_token_ms(priority: int) -> tuple[float, float]:
        harness = timed(200)
        for index in range(4):
            harness.add(f"stream {index}", prompt(10, index), SamplingParams(max_tokens=2000))
        harness.run(until=lambda: all(harness.tokens(f"stream {index}") for index in range(4)))
        for rival in range(3):
            harness.add(f"rival {rival}", prompt(350, 20 + rival))
        harness.add("urgent", prompt(400, 9), priority=priority)
        steps = step_until_first_token(harness, "urgent")
        return sum(result.elapsed for _, result in steps) * 1e3, max(result.elapsed for _, result in steps) * 1e3

    equal, urgent = first_token_ms(0), first_token_ms(1)
    assert equal[1] <= 205
    assert 205 < urgent[1] <= 605
    assert urgent[0] < 0.4 * equal[0]


def test_an_urgent_stream_waits_a_little_longer_only_where_an_equally_urgent_prompt_ends_by_that() -> None:
    def longest_ms(rest: int, *, others: int) -> float:
        """Of the steps in which an urgent prompt is read whose last rows are `rest` more than fit the first step."""
        harness = timed(200)
        harness.add("urgent stream", prompt(10, 1), SamplingParams(max_tokens=2000), priority=1)
        harness.add("other stream", prompt(10, 2), SamplingParams(max_tokens=2000), priority=others)
        harness.run(until=lambda: bool(harness.tokens("urgent stream") and harness.tokens("other stream")))
        fits = harness.scheduler.budget.prefill_rows(beside(2))
        harness.add("urgent", prompt(fits + rest, 3), priority=1)
        return max(result.elapsed for _, result in step_until_first_token(harness, "urgent")) * 1e3

    planned = AIM * 200 + 1
    assert longest_ms(1, others=1) <= planned
    assert planned < longest_ms(1, others=0) <= 250
    assert longest_ms(25, others=0) <= planned, "the rest needs a step of its own anyway"


def test_an_image_s_encoding_counts_once_it_was_seen() -> None:
    harness = timed(200)
    harness.add("stream", prompt(10), SamplingParams(max_tokens=500))
    step_until_first_token(harness, "stream")
    use = harness.scheduler.budget
    image = PromptSegment.media("image", logical_tokens=10, native_positions=4)
    plan = StepPlan(0.0, prefill=(MediaRows(1, image, 0, 0, 10),))
    assert use.media_rows(10) == 10
    for _ in range(20):
        use.learn(plan, 1, 0, StepTimes(target=0.3))
    assert use.media_rows(10) > 20, "it takes as long as that many rows of text"
    harness.add("image", PromptLayout([PromptSegment.text([1]), image, PromptSegment.text(prompt(50, 3))]))
    plans = [plan for plan, _ in step_until_first_token(harness, "image")]
    with_image = [plan for plan in plans if any(isinstance(rows, MediaRows) for rows in plan.prefill)]
    text = [rows.tokens.size for plan in with_image for rows in plan.prefill if isinstance(rows, PrefillRows)]
    assert sum(text) == 0


def segment(tokens: int) -> SegmentHeader:
    run = PromptSegment.text(prompt(tokens))
    start = PromptBoundary.START
    return SegmentHeader("key", "", "", start, start.advance(tokens), (run,), 0)


def test_copies_of_prefixes_take_their_time_from_prompts() -> None:
    rates, store = CopyRates(), StoreSegment(0, segment(1000))
    rates.learn(StepPlan(0.0, (store,)), StepResult(0.1, times=StepTimes(storing=0.1)), 0.1)
    first = rates.copies_ms([store])
    rates.learn(StepPlan(0.0, (store,)), StepResult(0.1, times=StepTimes(storing=0.1)), 0.1)
    assert 3 < first < rates.copies_ms([store]) < 100, "learned from what copies took"
    restore = RestoreSegment(1, "key", SpeculativePosition(0, 0), SpeculativePosition(1000, 0))
    assert rates.copies_ms([ClearSequence(3), restore]) == 1000 * rates.restore_ms


def test_copies_of_a_few_tokens_say_nothing_of_what_a_token_takes() -> None:
    """A chat template's beginning of 12 tokens takes milliseconds to restore; were that 0.2 a token, restoring 1,000
    would look dearer than having them slow down a whole answer."""
    rates, few = CopyRates(), SpeculativePosition(12, 0)
    before = rates.restore_ms, rates.store_ms
    operations = (RestoreSegment(1, "key", SpeculativePosition(0, 0), few), StoreSegment(0, segment(12)))
    for _ in range(50):
        rates.learn(StepPlan(0.0, operations), StepResult(0.1, times=StepTimes(storing=0.003, restoring=0.003)), 0.1)
    assert (rates.restore_ms, rates.store_ms) == before


def test_a_step_that_restores_a_prefix_reads_less_of_prompts() -> None:
    config = SchedulerConfig(
        n_ctx=1500, target_itl_ms=200, cache_ram=10**9, segment_sizes=FAKE_SIZES, min_prefix_tokens=64
    )
    store = FakeStore(config.cache_ram)
    harness = Harness(config, FakeRunner(1500, VOCABULARY.size, costs=StepCosts(LiveCosts(SMALL)), store=store))
    harness.scheduler = Scheduler(config, VOCABULARY, pace=LiveCosts(SMALL))
    for name, seed in (("first", 1), ("second", 2)):  # the second one pushes the first out of the pool
        harness.add(name, prompt(1000, seed))
        harness.run()
    harness.add("stream", prompt(10), SamplingParams(max_tokens=400))
    step_until_first_token(harness, "stream")
    tiers = harness.scheduler.pool.tiers
    assert tiers is not None
    tiers.rates.restore_ms = 0.1
    harness.add("again", [*prompt(1000, 1), *prompt(300, 3)])
    plans = [plan for plan, _ in step_until_first_token(harness, "again")]
    rows = [sum(rows.tokens.size for rows in plan.prefill if isinstance(rows, PrefillRows)) for plan in plans]
    restored = [any(isinstance(one, RestoreSegment) for one in plan.operations) for plan in plans]
    assert restored[0]
    assert not any(restored[1:])
    assert rows[0] < 0.6 * rows[1]


def test_costs_that_drafts_do_not_go_by_are_learned_all_the_same() -> None:
    slow = CostCurve(SMALL.rows, tuple(2 * ms for ms in SMALL.ms))
    harness = timed(200)
    harness.runner = FakeRunner(8192, VOCABULARY.size, costs=StepCosts(LiveCosts(slow)))
    harness.add("stream", prompt(10), SamplingParams(max_tokens=2000))
    step_until_first_token(harness, "stream")
    harness.add("long", prompt(3000, 1))
    steps = step_until_first_token(harness, "long")
    assert steps[0][1].elapsed * 1e3 > 300
    assert max(result.elapsed for _, result in steps[-20:]) * 1e3 <= 210
