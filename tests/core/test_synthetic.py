"""Synthetic acceptance: exact rates, the same every time, and the scheduler's books still balance."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.core.request import Request, SamplingParams, Usage
from forerun.core.sampling import SamplingContext
from forerun.core.scheduler import Scheduler
from forerun.core.synthetic import SyntheticAcceptance
from forerun.core.verification import Verified, verify
from forerun.testing import FakeDrafter, FakeRunner, FakeVocabulary
from tests.core.harness import VOCABULARY, Harness

PROMPT = [1, 2, 3, 4]
CHEAP_ROWS = CostCurve((1, 64), (10.0, 20.0))
COSTLY_ROWS = CostCurve((1, 64), (10.0, 640.0))


def context(seed: int = 7) -> SamplingContext:
    history = TokenHistory(PromptLayout.of_text(PROMPT))
    return SamplingContext(SamplingParams(), seed, frozenset(), history)


def verified(probability: float, rows: np.ndarray, drafts: list[int], seed: int = 7, most: int = 99) -> Verified:
    return SyntheticAcceptance(probability).verify(rows.astype(np.float32), drafts, context(seed), most)


def test_certain_drafts_are_taken_whatever_the_model_says() -> None:
    rows = np.eye(4)[[0, 0, 0]]
    assert verified(1.0, rows, [3, 2]) == Verified((3, 2, 0), 2, None)
    assert verified(1.0, rows, [3, 2], most=2) == Verified((3, 2), 2, None)


def test_a_refused_draft_gives_way_to_the_models_choice_or_to_its_second_one() -> None:
    rows = np.array([[0, 3, 2, 1], [0, 0, 0, 0]])
    assert verified(0.0, rows, [3]) == Verified((1,), 0, None)
    assert verified(0.0, rows, [1]) == Verified((2,), 0, None)


def test_rows_are_put_back_as_they_were() -> None:
    rows = np.array([[0, 3, 2, 1], [0, 0, 0, 0]], np.float32)
    before = rows.copy()
    SyntheticAcceptance(0.0).verify(rows, [1], context(), 9)
    assert (rows == before).all()


def test_without_drafts_it_is_plain_verification() -> None:
    rows = np.array([[0, 3, 2, 1]], np.float32)
    assert SyntheticAcceptance(0.5).verify(rows, (), context(), 1) == verify(rows, (), context(), 1)


def test_the_rate_is_the_one_asked_for_and_a_function_of_seed_and_index() -> None:
    judge = SyntheticAcceptance(0.8)
    found = [judge.accepts(3, index) for index in range(4000)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.02)
    assert found == [judge.accepts(3, index) for index in range(4000)]
    assert found != [judge.accepts(4, index) for index in range(4000)]


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SyntheticAcceptance(probability)


def test_the_dummy_never_proposes_what_would_end_the_answer() -> None:
    config = SchedulerConfig(n_ctx=64, max_num_seqs=1, speculation=5, synthetic_acceptance=1.0)
    vocabulary = FakeVocabulary()
    runner = FakeRunner(64, vocabulary.size, verify=SyntheticAcceptance(1.0).verify)
    harness = Harness(config, runner, vocabulary)
    harness.add("a", [0, 1, 2], SamplingParams(max_tokens=20, ignore_eos=True))
    harness.run()
    assert len(harness.tokens("a")) == 20
    assert 2 not in harness.tokens("a")


def harness(probability: float, *, with_model: bool = False) -> Harness:
    config = SchedulerConfig(
        n_ctx=1024,
        max_num_seqs=4,
        speculation=6,
        synthetic_acceptance=probability,
        draft_n_ctx=1024 if with_model else 0,
    )
    drafter = FakeDrafter(1024, VOCABULARY.size, 0.0) if with_model else None
    runner = FakeRunner(1024, VOCABULARY.size, drafter=drafter, verify=SyntheticAcceptance(probability).verify)
    return Harness(config, runner)


@pytest.mark.parametrize("with_model", [False, True], ids=["dummy", "useless model"])
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_any_draft_is_accepted_as_often_as_asked_and_every_output_says_so(
    probability: float,
    with_model: bool,  # noqa: FBT001 - data
) -> None:
    run = harness(probability, with_model=with_model)
    for index in range(4):
        run.add(str(index), [*PROMPT, index], SamplingParams(max_tokens=200, seed=index))
    run.run()
    usages = [run.usage(str(index)) for index in range(4)]
    assert all(usage.is_synthetic and usage.output_tokens == 200 for usage in usages)
    assert all(delta.is_synthetic for deltas in run.deltas.values() for delta in deltas)
    # A block of 6 is accepted up to the first refusal: 0, 0.5 + ... + 0.5 ** 6, or 6 tokens of it.
    accepted = sum(usage.accepted_tokens for usage in usages) / sum(usage.draft_steps for usage in usages)
    assert accepted == pytest.approx(sum(probability**length for length in range(1, 7)), rel=0.12)


def simulated(probability: float, curve: CostCurve, seed: int = 1) -> tuple[float, Usage]:
    """Simulated seconds of a request under automatic speculation, and its usage."""
    costs = StepCosts(LiveCosts(curve))
    config = SchedulerConfig(n_ctx=1024, max_num_seqs=1, speculation=32, synthetic_acceptance=probability)
    scheduler = Scheduler(config, VOCABULARY, costs=StepCosts(LiveCosts(curve)))
    runner = FakeRunner(1024, VOCABULARY.size, costs=costs, verify=SyntheticAcceptance(probability).verify)
    params = SamplingParams(max_tokens=400, seed=seed)
    scheduler.add(Request(id="a", prompt=PromptLayout.of_text(PROMPT), params=params))
    now, usage = 0.0, None
    while scheduler.has_work:
        plan = scheduler.schedule(now)
        result = runner.execute(plan)
        now += result.elapsed
        usage = scheduler.update(plan, result)[-1].usage
    assert usage is not None
    return now, usage


def test_the_controller_meets_synthetic_acceptance_as_it_would_meet_a_real_one() -> None:
    plain = 400 * CHEAP_ROWS.predict(1) / 1e3
    seconds, usage = simulated(0.9, CHEAP_ROWS)
    assert plain / seconds > 4, "dummies that come true earn rows, also those that were only compared"
    assert usage.saved_ms == pytest.approx((plain - seconds) * 1e3, rel=0.02)
    seconds, usage = simulated(0.9, COSTLY_ROWS)
    assert plain / seconds > 0.97
    seconds, usage = simulated(0.0, CHEAP_ROWS)
    assert plain / seconds > 0.97, "dummies that never come true are given up"
