"""When a ratio is a difference."""

from __future__ import annotations

import random

import pytest

from forerun.bench.ratios import Verdict, interval, ratio


def test_a_ratio_is_above_one_where_the_subject_is_better_whatever_counts() -> None:
    assert ratio([2.0], [1.0], more_is_better=True).median == 2.0
    assert ratio([2.0], [1.0], more_is_better=False).median == 0.5


def test_pairs_are_taken_within_rounds() -> None:
    slow_minute = ratio([10.0, 20.0, 10.0, 40.0], [11.0, 22.0, 11.0, 44.0], more_is_better=False)
    assert (slow_minute.low, slow_minute.median, slow_minute.high) == pytest.approx((1.1, 1.1, 1.1))
    assert slow_minute.verdict is Verdict.BETTER


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        ([1.1, 1.2, 1.1, 1.3], Verdict.BETTER),
        ([0.9, 0.8, 0.9, 0.7], Verdict.WORSE),
        ([0.9, 1.2, 1.1, 0.8], Verdict.NO_DIFFERENCE),
        ([1.3, 1.2, 1.1, 0.8], Verdict.NO_DIFFERENCE),
        ([1.1, 1.2, 1.3], Verdict.TOO_FEW),
    ],
)
def test_a_difference_is_one_beyond_its_interval(mine: list[float], verdict: Verdict) -> None:
    assert ratio(mine, [1.0] * len(mine), more_is_better=True).verdict is verdict


def test_an_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    chances = random.Random(1)
    held = 0
    for _ in range(40):
        low, high = interval([chances.lognormvariate(0, 0.1) for _ in range(12)])
        held += low <= 1 <= high
    assert held >= 34


def test_without_a_round_there_is_no_ratio() -> None:
    with pytest.raises(ValueError, match="no round"):
        ratio([], [], more_is_better=True)
