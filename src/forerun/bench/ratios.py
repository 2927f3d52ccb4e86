"""How many times as fast one server is as another, and whether that is more than chance.

Both ran in every round, so that a slow minute of the machine hits both: ratios are taken within rounds. The interval
is a percentile bootstrap of their median (Efron, 1979): rounds are drawn again, with replacement, many times. Of few
rounds it is too narrow rather than too wide; with fewer than four nothing is called a difference.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LEAST_ROUNDS: Final = 4
"""Of four rounds without any difference all are on the same side in one of eight cases: ask for more to be sure."""
_DRAWS: Final = 4000
_COVERED: Final = 0.95


class Verdict(StrEnum):
    """What may be said of a ratio."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference"
    TOO_FEW = "too few rounds"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Above 1: the subject is better, whatever way its figure counts."""

    median: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> Verdict:
        if self.rounds < LEAST_ROUNDS:
            return Verdict.TOO_FEW
        if self.low > 1:
            return Verdict.BETTER
        return Verdict.WORSE if self.high < 1 else Verdict.NO_DIFFERENCE


def ratio(subject: Sequence[float], other: Sequence[float], *, more_is_better: bool) -> Ratio:
    """Of figures of the same rounds, in the same order, all above 0. Raises ValueError where there are none."""
    pairs = list(zip(subject, other, strict=True))
    if not pairs:
        raise ValueError("no round was measured on both sides")
    ratios = [mine / theirs if more_is_better else theirs / mine for mine, theirs in pairs]
    low, high = interval(ratios)
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Within which the median of such values lies, in 95 of 100 draws."""
    chances = random.Random(0)  # the same figures always give the same interval
    medians = sorted(statistics.median(chances.choices(values, k=len(values))) for _ in range(_DRAWS))
    cut = round(_DRAWS * (1 - _COVERED) / 2)
    return medians[cut], medians[-cut - 1]
