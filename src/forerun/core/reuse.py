"""How often segments are used again, learned from what happens to them: by kind, depth and time since the last use.

A segment's life is a row of waits, each of which ends with a use or with the segment being forgotten:

    stored ──12 s── used ──3 s── used ──40 s── used ──900 s── evicted ── ... a ghost ... ── stored again, or forgotten

The rate of reuse at an age is uses at this age / seconds that segments spent at this age: the hazard rate of waits. To
keep what has the highest rate for its size is the best a policy can do that knows no more than this, where rates fall
with age (Panigrahy, Nain, Neglia, Towsley 2022, "A new upper bound on cache hit probability for non-anticipative
caching policies"). That what was evicted stays known as a ghost for a while keeps it from looking like what nobody asks
for again (as in ARC, Megiddo and Modha 2003).

A table of kinds x depths x ages would need more waits than a cache sees in a day, so that the rate is a product:

    rate = base(age) x kind factor x depth factor        factors of their own below and above _LONG seconds

each of which is uses / uses expected from the other factors, drawn towards what is assumed in the beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import log2
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray


class ReuseKind(IntEnum):
    """What a segment's use so far says."""

    NEW = 0
    """Its conversation has not come back yet, and may be a single request."""
    CONTINUED = 1
    """Its conversation went on."""
    SHARED = 2
    """Prompts went through it to elsewhere more than once: other conversations, or forks."""


class ReuseClass(NamedTuple):
    """Segments that are expected to be used alike."""

    kind: ReuseKind
    depth: int
    """Bin of the tokens before it: 0 below 1,024, 1 below 2,048, and so on."""


class Waiting(Protocol):
    """What is looked at of a segment (core/retention.py)."""

    key: str
    start: int
    last_used: float
    uses: int
    shared_uses: int
    follows_use: bool


_KINDS: Final = len(ReuseKind)
_DEPTHS: Final = 7
_FIRST_DEPTH: Final = 1024
_BINS: Final = 24
"""Of ages: below 1 second, 3, 7, 15 and so on, to half a year."""
_LONG: Final = 8
"""Bins from here on, 255 seconds, are long waits: conversations are over, or somebody is away."""
_BASE_WEIGHT: Final = 64.0
_FACTOR_WEIGHT: Final = 16.0
"""What is assumed weighs as much as so many waits, or expected uses. A conversation has dozens of segments."""
_KIND_FACTORS: Final = np.array([0.25, 1.0, 1.5])
_HALF_DEPTH: Final = 8192
"""After a long wait a segment behind so many tokens is assumed to be used half as often as one at the start: a prefix
is used by all that use what follows it, and by others too."""
_STRETCH: Final = 16
_REFRESH: Final = 64
"""Waits that end until rates are worked out again; more where many go on, which all have to be looked at."""
_FADE: Final = 0.98
"""What was counted weighs so much at each refresh: half of it is forgotten in 34 of them."""
_GHOSTS: Final = 16_384

_Table: TypeAlias = NDArray[np.float64]
"""Kinds x depths x ages, or a part of that."""

_EDGES: Final[_Table] = np.exp2(np.arange(_BINS + 1)) - 1.0
_WIDTHS: Final[_Table] = np.diff(_EDGES)
_ASSUMED_BASE: Final[_Table] = 0.5 / np.sqrt((1 + _EDGES[:-1]) * (1 + _EDGES[1:]))
"""Half of all that have waited so long are used before they have waited twice as long."""
_DEPTH_MIDDLES: Final[_Table] = np.append(0.0, 1.5 * _FIRST_DEPTH * np.exp2(np.arange(_DEPTHS - 1)))
_DEPTH_FACTORS: Final[_Table] = 1 / (1 + _DEPTH_MIDDLES / _HALF_DEPTH)


_CLASSES: Final = [[ReuseClass(kind, depth) for depth in range(_DEPTHS)] for kind in ReuseKind]


def reuse_class(segment: Waiting) -> ReuseClass:
    """The class of a segment, which changes only with a use."""
    kind = ReuseKind.CONTINUED if segment.uses or segment.follows_use else ReuseKind.NEW
    if segment.shared_uses > 1:
        kind = ReuseKind.SHARED
    return _CLASSES[kind][min((segment.start // _FIRST_DEPTH).bit_length(), _DEPTHS - 1)]


@dataclass(frozen=True, slots=True)
class Ghost:
    """What stays known of a segment that is gone."""

    reuse_class: ReuseClass
    last_used: float
    uses: int
    shared_uses: int


class ReuseRates:
    """Rates by class and age. Owned by one policy.

    A wait begins with `began`; `used` ends it. Where a segment `left`, its wait goes on until it `returned`.
    """

    __slots__ = ("_ended", "_ghosts", "_open", "_rates", "_since_refresh", "_used", "_waiting")

    def __init__(self) -> None:
        self._used: _Table = np.zeros((_KINDS, _DEPTHS, _BINS))
        """Waits that ended with a use, by their length."""
        self._ended: _Table = np.zeros((_KINDS, _DEPTHS, _BINS))
        """All that ended."""
        self._open: dict[ReuseClass, dict[int, int]] = {}
        """Waits that go on: how many began in each stretch of _STRETCH seconds."""
        self._waiting = 0
        self._since_refresh = 0
        self._ghosts: OrderedDict[str, Ghost] = OrderedDict()
        self._refresh(0.0)

    def rate(self, of: ReuseClass, age: float) -> float:
        """Uses a second to be expected of a segment that was last used `age` seconds ago. Never rises with age."""
        rates = self._rates[of.kind][of.depth]
        place = log2(1.0 + max(age, 0.0))
        at = int(place)
        if at >= _BINS - 1:
            return rates[-1]
        within: float = (rates[at + 1] / rates[at]) ** (place - at)
        return rates[at] * within

    def began(self, segments: Iterable[Waiting]) -> None:
        """Segments were stored, or used: their next waits begin at their `last_used`."""
        for (of, began), count in _alike(segments).items():
            self._waiting += count
            stretches = self._open.setdefault(of, {})
            stretch = int(began) // _STRETCH
            stretches[stretch] = stretches.get(stretch, 0) + count

    def used(self, segments: Iterable[Waiting], now: float) -> None:
        """Segments are used. To be called before that is written into them."""
        for (of, began), count in _alike(segments).items():
            self._end(of, began, now, count, used=True)

    def interrupted(self, segments: Iterable[Waiting]) -> None:
        """Waits that tell nothing."""
        for (of, began), count in _alike(segments).items():
            self._stop(of, began, count)

    def left(self, segment: Waiting, now: float) -> None:
        """A segment is gone from its tier; the longest gone is forgotten where there are too many of those."""
        ghost = Ghost(reuse_class(segment), segment.last_used, segment.uses, segment.shared_uses)
        self._ghosts[segment.key] = ghost
        if len(self._ghosts) > _GHOSTS:
            _, forgotten = self._ghosts.popitem(last=False)
            self._end(forgotten.reuse_class, forgotten.last_used, now, 1, used=False)

    def returned(self, key: str, now: float) -> Ghost | None:
        """A segment is stored: what is known of it from before, if anything. That wait ended with a use."""
        ghost = self._ghosts.pop(key, None)
        if ghost is not None:
            self._end(ghost.reuse_class, ghost.last_used, now, 1, used=True)
        return ghost

    def _end(self, of: ReuseClass, began: float, now: float, count: int, *, used: bool) -> None:
        self._stop(of, began, count)
        at = of.kind, of.depth, min(int(log2(1.0 + max(now - began, 0.0))), _BINS - 1)
        self._ended[at] += count
        if used:
            self._used[at] += count
        self._since_refresh += count
        if self._since_refresh >= max(_REFRESH, self._waiting // 8):
            self._refresh(now)

    def _stop(self, of: ReuseClass, began: float, count: int) -> None:
        stretches = self._open[of]
        stretch = int(began) // _STRETCH
        stretches[stretch] -= count
        if not stretches[stretch]:
            del stretches[stretch]
        self._waiting -= count

    # --- working rates out ----------------------------------------------------------

    def _refresh(self, now: float) -> None:
        self._since_refresh = 0
        seconds = self._seconds_at(now)
        rates = _rates(self._used, seconds)
        self._rates: list[list[list[float]]] = rates.tolist()
        self._used *= _FADE
        self._ended *= _FADE

    def _seconds_at(self, now: float) -> _Table:
        """Seconds that segments spent at each age, in waits that ended and in those that go on."""
        lengths = self._ended.copy()
        for of, began in self._open.items():
            if began:
                middles = (np.fromiter(began, np.float64, len(began)) + 0.5) * _STRETCH
                ages = np.maximum(now - middles, 0.0)
                counts = np.fromiter(began.values(), np.float64, len(began))
                bins = np.minimum(np.log2(1.0 + ages).astype(np.intp), _BINS - 1)
                lengths[of] += np.bincount(bins, counts, _BINS)
        longer = np.cumsum(lengths[..., ::-1], -1)[..., ::-1] - lengths
        result: _Table = (longer + lengths / 2) * _WIDTHS
        return result


def _alike(segments: Iterable[Waiting]) -> dict[tuple[ReuseClass, float], int]:
    """How many of them are of each class and last use: those of one chain are mostly alike."""
    counts: dict[tuple[ReuseClass, float], int] = {}
    for segment in segments:
        alike = reuse_class(segment), segment.last_used
        counts[alike] = counts.get(alike, 0) + 1
    return counts


def _rates(used: _Table, seconds: _Table) -> _Table:
    """Uses a second by kind, depth and age."""
    base = used.sum((0, 1)) + _BASE_WEIGHT * _ASSUMED_BASE * _WIDTHS
    base /= seconds.sum((0, 1)) + _BASE_WEIGHT * _WIDTHS
    rates: _Table = np.empty_like(used)
    for ages, depth_factors in (
        (slice(0, _LONG), np.ones(_DEPTHS)),
        (slice(_LONG, _BINS), _DEPTH_FACTORS),
    ):
        seen = used[..., ages].sum(-1)
        expected = (seconds[..., ages] * base[ages]).sum(-1)
        by_kind = _factors(seen.sum(1), expected.sum(1), _KIND_FACTORS)
        by_depth = _factors(seen.sum(0), (expected * by_kind[:, None]).sum(0), depth_factors)
        by_depth = np.minimum.accumulate(by_depth)  # whoever uses what is deeper uses what is before it
        rates[..., ages] = base[ages] * by_kind[:, None, None] * by_depth[:, None]
    falling: _Table = np.maximum.accumulate(rates[..., ::-1], -1)[..., ::-1]
    return falling


def _factors(seen: _Table, expected: _Table, assumed: _Table) -> _Table:
    factors: _Table = (seen + _FACTOR_WEIGHT * assumed) / (expected + _FACTOR_WEIGHT)
    return factors
