"""Axes of charts."""

from __future__ import annotations

import math


class LinearAxis:
    """Places values from `low` to `high` between two pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low = low
        self._scale = (end - start) / (high - low)
        self._start = start

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._scale


class LogAxis:
    """The same, with every doubling equally long; `low` is above 0."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._linear = LinearAxis(math.log2(low), math.log2(high), start, end)

    def __call__(self, value: float) -> float:
        return self._linear(math.log2(value))


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two values."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def linear_ticks(high: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to `high`, at most so many steps."""
    step = next(tick for tick in log_ticks(high / most / 10, high * 10) if high / tick <= most)
    return [index * step for index in range(int(high / step) + 1)]
