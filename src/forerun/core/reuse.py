"""How often segments are used again, learned from what happens to them, by class and by time since the last use.

A segment's life is a row of waits, each of which ends with a use or with the segment being forgotten:

    stored ──12 s── used ──3 s── used ──40 s── used ──900 s── evicted ── ... a ghost ... ── stored again, or forgotten

The rate of reuse at an age is uses at this age / seconds that segments spent at this age, the hazard rate of these
waits. Keeping what has the highest rate for its size is the best any policy can do that knows no more than this, as
long as rates fall with age (Panigrahy, Nain, Neglia, Towsley, "A new upper bound on cache hit probability for
non-anticipative caching policies", 2022; Beckmann, Chen, Cidon, "LHD: improving cache hit rate by maximizing hit
density", NSDI 2018, counts likewise).
What was evicted stays known as a ghost for a while: without, a segment that returns would look like one that never did.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import log2
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

_BINS = 40
_BINS_PER_DOUBLING = 2
_PRIOR_WAITS = 4.0
"""What is assumed before anything was seen weighs as much as so many waits."""
_PRIOR_RETURNS = 0.5
"""Share of the waits that end with a use for every doubling of their age, as assumed."""
_REFRESH = 64
"""Waits until the rates are worked out again."""
_FADE = 0.98
"""What was counted before weighs so much after each refresh: half is forgotten in about 2,200 waits."""
_GHOSTS = 65_536


class Waiting(Protocol):
    """What is looked at of a segment (core/retention.py)."""

    key: str
    last_used: float
    gap: float | None
    uses: int
    shared_uses: int


class ReuseClass(NamedTuple):
    """Segments that are expected to be used again alike."""

    kind: int
    """0: not used yet. 1: used by its own conversation. 2: by others as well, like a system prompt."""
    pace: int
    """How long the wait before its last use was: 0 below 8 seconds, 1 below 64, 2 below 512, 3 beyond."""

    @classmethod
    def of(cls, segment: Waiting) -> Self:
        if segment.gap is None:
            return cls(0, 0)
        return cls(2 if segment.shared_uses > 1 else 1, min(int(log2(max(segment.gap, 1.0))) // 3, 3))


@dataclass(frozen=True, slots=True)
class Ghost:
    """What stays known of a segment that is gone."""

    reuse_class: ReuseClass
    last_used: float
    uses: int
    shared_uses: int


class _Waits:
    """Waits of one class: those that ended, by the bin of their length, and those that go on, by when they began."""

    __slots__ = ("_ended", "_open", "_used", "rates")

    def __init__(self) -> None:
        self._used = np.zeros(_BINS)
        self._ended = np.zeros(_BINS)
        self._open: dict[int, int] = {}
        """Second in which they began: how many."""
        self.rates: list[float] = []
        self.refresh(0.0)

    def begin(self, at: float) -> None:
        second = int(at)
        self._open[second] = self._open.get(second, 0) + 1

    def end(self, began: float, now: float, *, used: bool) -> None:
        second = int(began)
        left = self._open[second] - 1
        if left:
            self._open[second] = left
        else:
            del self._open[second]
        at = _bin(now - began)
        self._ended[at] += 1
        self._used[at] += used

    def refresh(self, now: float) -> None:
        """Work the rates out: uses at an age / seconds spent at it, no lower than at any higher age."""
        ended = self._ended + _PRIOR_ENDED
        if self._open:
            ages = now - np.fromiter(self._open.keys(), np.float64, len(self._open))
            counts = np.fromiter(self._open.values(), np.float64, len(self._open))
            ended = ended + np.bincount(_bins(ages), counts, _BINS)
        beyond = np.cumsum(ended[::-1])[::-1] - ended
        hazard = (self._used + _PRIOR_USED) / ((beyond + ended / 2) * _WIDTHS)
        self.rates = np.maximum.accumulate(hazard[::-1])[::-1].tolist()
        self._used *= _FADE
        self._ended *= _FADE


def _bin(age: float) -> int:
    return min(int(_BINS_PER_DOUBLING * log2(1.0 + max(age, 0.0))), _BINS - 1)


def _bins(ages: NDArray[np.float64]) -> NDArray[np.intp]:
    bins: NDArray[np.intp] = (_BINS_PER_DOUBLING * np.log2(1.0 + np.maximum(ages, 0.0))).astype(np.intp)
    return np.minimum(bins, _BINS - 1)


_EDGES = np.exp2(np.arange(_BINS + 1) / _BINS_PER_DOUBLING) - 1.0
_WIDTHS = np.diff(_EDGES)
_LEFT = (1 - _PRIOR_RETURNS) ** (np.arange(_BINS + 1) / _BINS_PER_DOUBLING)
"""Share of the waits that are longer, as assumed: the rate falls as 1 / (1 + age)."""
_PRIOR_USED = _PRIOR_WAITS * -np.diff(_LEFT)
_PRIOR_ENDED = _PRIOR_USED + np.append(np.zeros(_BINS - 1), _PRIOR_WAITS * _LEFT[-1])


class ReuseRates:
    """Rates by class and age. Owned by one policy.

    A wait begins with `began`; `used` ends it. Where a segment `left`, its wait goes on until it `returned`.
    """

    __slots__ = ("_ended", "_ghosts", "_open", "_waits")

    def __init__(self) -> None:
        self._waits: dict[ReuseClass, _Waits] = {}
        self._ghosts: OrderedDict[str, Ghost] = OrderedDict()
        self._open = 0
        self._ended = 0
        """Waits that ended since the rates were worked out."""

    def rate(self, reuse_class: ReuseClass, age: float) -> float:
        """Uses a second to be expected of a segment that was last used `age` seconds ago."""
        return self._of(reuse_class).rates[_bin(age)]

    def began(self, segment: Waiting) -> None:
        """A segment was stored, or used: its next wait begins at its `last_used`."""
        self._open += 1
        self._of(ReuseClass.of(segment)).begin(segment.last_used)

    def used(self, segment: Waiting, now: float) -> None:
        """A segment is used. To be called before that is written into it."""
        self._end(ReuseClass.of(segment), segment.last_used, now, used=True)

    def left(self, segment: Waiting, now: float) -> None:
        """A segment is gone from its tier; the longest gone is forgotten where there are too many of those."""
        ghost = Ghost(ReuseClass.of(segment), segment.last_used, segment.uses, segment.shared_uses)
        self._ghosts[segment.key] = ghost
        if len(self._ghosts) > _GHOSTS:
            _, forgotten = self._ghosts.popitem(last=False)
            self._end(forgotten.reuse_class, forgotten.last_used, now, used=False)

    def returned(self, key: str, now: float) -> Ghost | None:
        """A segment is stored: what is known of it from before, if anything. That wait ended with a use."""
        ghost = self._ghosts.pop(key, None)
        if ghost is not None:
            self._end(ghost.reuse_class, ghost.last_used, now, used=True)
        return ghost

    def _end(self, reuse_class: ReuseClass, began: float, now: float, *, used: bool) -> None:
        self._of(reuse_class).end(began, now, used=used)
        self._open -= 1
        self._ended += 1
        if self._ended >= max(_REFRESH, self._open // 8):
            self._ended = 0
            for waits in self._waits.values():
                waits.refresh(now)

    def _of(self, reuse_class: ReuseClass) -> _Waits:
        waits = self._waits.get(reuse_class)
        if waits is None:
            waits = self._waits[reuse_class] = _Waits()
        return waits
