"""How much of something, drawn at random: tokens of a message, seconds of a pause."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

_P95: Final = 1.6448536269514722
"""The normal distribution's 95th percentile, in standard deviations."""
_MOST: Final = 4.0
"""Nothing drawn is larger than this many times the 95th percentile: one prompt must not decide a whole run."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    value: float

    def draw(self, dice: Random) -> float:  # noqa: ARG002
        return self.value

    @property
    def mean(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Between:
    """Anything from `low` to `high`, all equally likely."""

    low: float
    high: float

    def draw(self, dice: Random) -> float:
        return dice.uniform(self.low, self.high)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class LongTailed:
    """Log-normal: half lie below `median`, one in twenty above `p95`."""

    median: float
    p95: float

    def draw(self, dice: Random) -> float:
        return min(dice.lognormvariate(math.log(self.median), self._sigma), _MOST * self.p95)

    @property
    def mean(self) -> float:
        """Of the distribution without its bound, which takes next to nothing away."""
        return self.median * math.exp(self._sigma**2 / 2)

    @property
    def _sigma(self) -> float:
        return math.log(self.p95 / self.median) / _P95


Amount: TypeAlias = Fixed | Between | LongTailed


def read_amount(value: object, *, least: float, most: float) -> Amount:
    """An amount as it is written: 120, [50, 300] or {median = 80, p95 = 400}. Raises ValueError."""
    if isinstance(value, dict):
        if set(value) != {"median", "p95"}:
            raise ValueError(f"has the fields median and p95, got {', '.join(map(str, value)) or 'none'}")
        median, p95 = (_number(value[name], least, most) for name in ("median", "p95"))
        if not 0 < median < p95:
            raise ValueError(f"median must lie above 0 and below p95, got {median:g} and {p95:g}")
        return LongTailed(median, p95)
    if isinstance(value, list):
        if len(value) != 2:
            raise ValueError(f"a range has two ends, got {len(value)}")
        low, high = (_number(end, least, most) for end in value)
        if low > high:
            raise ValueError(f"a range ascends, got {low:g} and {high:g}")
        return Between(low, high)
    return Fixed(_number(value, least, most))


def _number(value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, a range such as [50, 300] or {{median = 80, p95 = 400}}, got {value!r}")
    if not least <= value <= most:  # also refuses NaN
        raise ValueError(f"must lie between {least:g} and {most:g}, got {value!r}")
    return float(value)
