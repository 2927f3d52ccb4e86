"""Goodness of fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def chi_square_limit(freedom: int) -> float:
    """Exceeded by chance once in a thousand (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3


def chi_square(observed: Sequence[float], expected: Sequence[float]) -> float:
    return sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))


def assert_same_source(one: Counter[int], other: Counter[int]) -> None:
    """Two samples of one size, of the same distribution as far as 999 of 1000 tests would say (two-sample chi-square).

    Values seen less than ten times in all are counted together.
    """
    assert one.total() == other.total()
    both = one + other
    often = [value for value, count in both.items() if count >= 10]
    pairs = [(one[value], other[value]) for value in often]
    rare = one.total() - sum(a for a, _ in pairs), other.total() - sum(b for _, b in pairs)
    if sum(rare) >= 10:
        pairs.append(rare)
    assert len(pairs) > 1, "nothing to compare"
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs)
    assert statistic < chi_square_limit(len(pairs) - 1)
