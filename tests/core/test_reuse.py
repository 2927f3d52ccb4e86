"""What is learned about how often segments are used again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from forerun.core.reuse import ReuseClass, ReuseKind, ReuseRates, reuse_class


@dataclass
class Segment:
    key: str = "a"
    start: int = 0
    last_used: float = 0.0
    uses: int = 0
    shared_uses: int = 0
    follows_use: bool = False


SHALLOW = ReuseClass(ReuseKind.CONTINUED, 0)


def wait(rates: ReuseRates, seconds: float, *, times: int, start: int = 0, uses: int = 1, at: float = 0.0) -> None:
    """Segments that are used after so many seconds."""
    for number in range(times):
        segment = Segment(str(number), start=start, last_used=at + number, uses=uses)
        rates.began([segment])
        rates.used([segment], at + number + seconds)


def abandon(rates: ReuseRates, times: int, *, start: int = 0, uses: int = 0) -> None:
    """Segments that are stored and evicted, and have waited since the beginning."""
    for number in range(times):
        segment = Segment(f"{start} {uses} {number}", start=start, uses=uses)
        rates.began([segment])
        rates.left(segment, 1.0)


@pytest.mark.parametrize(
    ("segment", "kind"),
    [
        (Segment(), ReuseKind.NEW),
        (Segment(follows_use=True), ReuseKind.CONTINUED),
        (Segment(uses=1), ReuseKind.CONTINUED),
        (Segment(uses=5, shared_uses=1), ReuseKind.CONTINUED),
        (Segment(uses=5, shared_uses=2), ReuseKind.SHARED),
    ],
)
def test_what_happened_to_a_segment_says_what_it_is(segment: Segment, kind: ReuseKind) -> None:
    assert reuse_class(segment).kind is kind


@pytest.mark.parametrize(("start", "depth"), [(0, 0), (1023, 0), (1024, 1), (4095, 2), (4096, 3), (10**6, 6)])
def test_depths_are_told_apart_by_doublings(start: int, depth: int) -> None:
    assert reuse_class(Segment(start=start)).depth == depth


def test_rates_fall_with_age_and_depth_whatever_was_seen() -> None:
    rates = ReuseRates()
    wait(rates, 100.0, times=500, start=9000)
    wait(rates, 3.0, times=500)
    abandon(rates, 300)
    for kind in ReuseKind:
        by_depth = [[rates.rate(ReuseClass(kind, depth), 2.0**x / 3) for x in range(28)] for depth in range(7)]
        for own in by_depth:
            assert own == sorted(own, reverse=True)
            assert own[-1] > 0
        for shallow, deep in pairwise(by_depth):
            assert all(low <= high * 1.000001 for low, high in zip(deep, shallow, strict=True))


def test_a_single_request_is_expected_back_less_than_a_conversation_and_the_more_so_the_more_stay_away() -> None:
    rates = ReuseRates()
    new = ReuseClass(ReuseKind.NEW, 0)
    before = rates.rate(new, 30.0) / rates.rate(SHALLOW, 30.0)
    assert before < 1
    abandon(rates, 400)
    wait(rates, 40.0, times=400)
    assert rates.rate(new, 30.0) / rates.rate(SHALLOW, 30.0) < before / 4


def test_where_single_requests_do_come_back_that_is_learned() -> None:
    rates = ReuseRates()
    wait(rates, 40.0, times=1000, uses=0)
    abandon(rates, 1000, uses=1)
    wait(rates, 40.0, times=200, uses=0, at=1000.0)
    assert rates.rate(ReuseClass(ReuseKind.NEW, 0), 30.0) > rates.rate(SHALLOW, 30.0)


def test_after_a_long_wait_what_lies_deep_is_expected_back_least() -> None:
    rates = ReuseRates()
    deep = ReuseClass(ReuseKind.CONTINUED, 5)
    assert rates.rate(deep, 10.0) == pytest.approx(rates.rate(SHALLOW, 10.0))
    assert rates.rate(deep, 2000.0) < 0.5 * rates.rate(SHALLOW, 2000.0)


def test_what_returns_after_it_was_evicted_counts_as_used() -> None:
    rates = ReuseRates()
    segment = Segment(uses=3, shared_uses=1)
    rates.began([segment])
    rates.left(segment, 5.0)
    ghost = rates.returned("a", 60.0)
    assert ghost is not None
    assert (ghost.uses, ghost.shared_uses, ghost.last_used) == (3, 1, 0.0)
    assert rates.returned("a", 61.0) is None


def test_a_clock_that_stands_still_or_jumps_far_does_no_harm() -> None:
    rates = ReuseRates()
    for seconds in (0.0, 0.0, 1e9, 1e12):
        wait(rates, seconds, times=70)
    assert rates.rate(SHALLOW, -1.0) == rates.rate(SHALLOW, 0.0)
    assert rates.rate(SHALLOW, 1e15) > 0
