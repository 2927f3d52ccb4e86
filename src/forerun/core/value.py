"""The value of stored segments: what keeping one saves for its size."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import ClassVar

from forerun.core.recompute import RecomputeCost
from forerun.core.retention import Fifo, LeafFirst, Lru, Retention, RetentionQueue, RetentionRecord
from forerun.core.reuse import ReuseClass, ReuseRates


class Value(LeafFirst):
    """What saves least time for each byte and second it is kept goes first.

        value = rate at which such segments are used again, at this age      x  time to recompute it  /  bytes
                (learned, by how it was used so far: core/reuse.py)             (core/recompute.py)

    Segments of one class and about one time per byte (within a factor of sqrt 2) share a queue in the order of their
    last use. The rate does not rise with age, so that the oldest of each queue is its least valuable, and the victim
    the least valuable of those.
    """

    name: ClassVar[str] = "value"

    def __init__(self, cost: RecomputeCost | None = None) -> None:
        self._cost = cost or RecomputeCost()
        self._rates = ReuseRates()
        self._queues: dict[tuple[ReuseClass, int], RetentionQueue] = {}

    def inserted(self, record: RetentionRecord, now: float) -> None:
        past = self._rates.returned(record.key, now)
        if past is not None:
            record.uses, record.shared_uses, record.gap = past.uses + 1, past.shared_uses, now - past.last_used
        super().inserted(record, now)
        self._rates.began(record)

    def used(self, chain: Sequence[RetentionRecord], now: float) -> None:
        for record in chain:
            self._rates.used(record, now)
        super().used(chain, now)
        for record in chain:
            self._rates.began(record)

    def removed(self, record: RetentionRecord, now: float) -> None:
        self._rates.left(record, now)
        super().removed(record, now)

    def victim(self, now: float) -> RetentionRecord | None:
        least, least_value = None, 0.0
        for (reuse_class, _), queue in self._queues.items():
            record = queue.first()
            if record is None:
                continue
            value = self._rates.rate(reuse_class, now - record.last_used) * self._per_byte(record)
            if least is None or value < least_value:
                least, least_value = record, value
        return least

    def _enqueue(self, record: RetentionRecord) -> None:
        group = (ReuseClass.of(record), round(2 * log2(self._per_byte(record))))
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = RetentionQueue()
        queue.push(record, record.last_used)

    def _per_byte(self, record: RetentionRecord) -> float:
        """Milliseconds of prefill that a byte saves."""
        return self._cost.ms(record.start, record.tokens) / max(record.nbytes, 1)


POLICIES = (Value.name, Lru.name, Fifo.name)


def retention(name: str, cost: RecomputeCost | None = None) -> Retention:
    """A policy by its name, for one tier. Raises ValueError for one that is not there."""
    match name:
        case Value.name:
            return Value(cost)
        case Lru.name:
            return Lru()
        case Fifo.name:
            return Fifo()
    raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
