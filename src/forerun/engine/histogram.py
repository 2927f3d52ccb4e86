"""Histograms with fixed buckets: cheap to add to, and values once somebody looks."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values fell into buckets. `counts[i]` are those up to `bounds[i]` and above the bound before it, the
    last one those above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    """The sum of the values."""

    def __add__(self, other: Histogram) -> Histogram:
        """Both together; they have the same buckets."""
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)


class Buckets:
    """A histogram that is being counted. Used by one thread."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds`: the largest value of each bucket, in rising order."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)

    def __repr__(self) -> str:
        return f"Buckets({sum(self._counts)} values)"
