"""The value of stored segments: what keeping one saves for its size."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import ClassVar

from forerun.core.retention import Fifo, LeafFirst, Lru, Retention, RetentionQueue, RetentionRecord
from forerun.core.reuse import ReuseClass, ReuseRates, reuse_class


class Value(LeafFirst):
    """What saves least for each byte and second it is kept goes first.

        value = rate at which such segments are used again, at this age   x  tokens to compute again  /  bytes
                (learned, by kind, depth and age: core/reuse.py)

    All tokens count alike, though those far behind cost several times more to compute: measured, weighing them so loses
    hits, and no less time (docs/decisions/0017-what-goes-first.md).

    Segments of one class and about one size per token (within a factor of sqrt 2) share a queue in the order of their
    last use. Rates do not rise with age, so that the oldest of each queue is its least valuable, and the victim is the
    least valuable of those.
    """

    name: ClassVar[str] = "value"

    def __init__(self) -> None:
        self._rates = ReuseRates()
        self._queues: dict[tuple[ReuseClass, int], RetentionQueue] = {}

    def inserted(self, record: RetentionRecord, now: float) -> None:
        past = self._rates.returned(record.key, now)
        if past is not None:
            record.uses, record.shared_uses = past.uses + 1, past.shared_uses
        super().inserted(record, now)
        self._rates.began([record])

    def used(self, chain: Sequence[RetentionRecord], now: float) -> None:
        self._rates.used(chain, now)
        super().used(chain, now)
        self._rates.began(chain)

    def retraced(self, record: RetentionRecord, now: float) -> None:
        """Who repeats a conversation up to here is likely to repeat the rest: it waits as if it had just been used."""
        following: list[RetentionRecord] = []
        while record.last_child is not None:
            record = record.last_child
            following.append(record)
        self._rates.interrupted(following)
        for record in following:
            self._renew(record, now)
        self._rates.began(following)

    def removed(self, record: RetentionRecord, now: float) -> None:
        self._rates.left(record, now)
        super().removed(record, now)

    def victim(self, now: float) -> RetentionRecord | None:
        least, least_value = None, 0.0
        for (of, _), queue in self._queues.items():
            record = queue.first()
            if record is None:
                continue
            value = self._rates.rate(of, now - record.last_used) * _tokens_per_byte(record)
            if least is None or value < least_value:
                least, least_value = record, value
        return least

    def _enqueue(self, record: RetentionRecord) -> None:
        group = (reuse_class(record), round(2 * log2(_tokens_per_byte(record))))
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = RetentionQueue()
        queue.push(record, record.last_used)


def _tokens_per_byte(record: RetentionRecord) -> float:
    return max(record.tokens, 1) / max(record.nbytes, 1)


POLICIES = (Value.name, Lru.name, Fifo.name)


def retention(name: str) -> Retention:
    """A policy by its name, for one tier. Raises ValueError for one that is not there."""
    match name:
        case Value.name:
            return Value()
        case Lru.name:
            return Lru()
        case Fifo.name:
            return Fifo()
    raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
