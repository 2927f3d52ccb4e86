"""Which stored segment goes when a tier is full: first in first out, least recently used, or by value.

A tier's catalog makes one `RetentionRecord` for each segment it holds and tells one `Retention` what happens to it:

    inserted(record, now)    it is in the tier now; `record.parent` says which record it goes on from
    used(chain, now)         a request shares these segments, from the start of the prompt to the deepest one, wherever
                             their KV came from (a hit in the pool counts too)
    retraced(record, now)    a sequence ends, and all it holds had been stored before: `record` is the last of it
    hold(record)             it must stay: it is being copied, restored, or pinned; `release(record)` as often
    removed(record, now)     it is gone, evicted or for any other reason; children go before their parents
    victim(now)              which one should go next; None where nothing can. Changes nothing: the catalog calls
                             `removed`, then asks again until there is room

Eviction is leaf first: a segment with children in the tier is never a victim, so chains stay whole. A tier of its own
(host, disk) has records and a policy of its own. Times are seconds of any clock that does not go back. All calls cost
O(log n) for each record, `victim` O(number of groups), whatever the number of segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import ClassVar, Protocol


class RetentionRecord:
    """What is known of one segment in one tier. The catalog makes it, only the tier's policy changes it."""

    __slots__ = (
        "branches",
        "children",
        "created_at",
        "follows_use",
        "holds",
        "key",
        "last_child",
        "last_used",
        "nbytes",
        "parent",
        "queue",
        "shared_uses",
        "start",
        "ticket",
        "tokens",
        "uses",
    )

    def __init__(
        self, key: str, parent: RetentionRecord | None, *, start: int, tokens: int, nbytes: int, now: float
    ) -> None:
        self.key = key
        self.parent = parent
        """The record in the same tier that it goes on from; None at the start of a prompt."""
        self.start = start
        """Logical tokens before it."""
        self.tokens = tokens
        self.nbytes = nbytes
        """What the tier gets back when it goes."""
        self.created_at = now
        """When it was stored; for a segment found on disk, when it was last used before."""
        self.last_used = now
        self.uses = 0
        """Requests that shared it since it was stored."""
        self.shared_uses = 0
        """Those among them that did not go on from the end of what is stored: another conversation, or a fork."""
        self.follows_use = False
        """Whether it goes on from what had been used already: its conversation has come back before."""
        self.children = 0
        """Segments in the tier that go on from it."""
        self.branches = 0
        """Segments that ever went on from it."""
        self.last_child: RetentionRecord | None = None
        """The one of those in the tier that was stored or used last."""
        self.holds = 0
        self.queue: RetentionQueue | None = None
        """Where it waits to be evicted; None while it must stay."""
        self.ticket = 0

    @property
    def is_evictable(self) -> bool:
        return not self.children and not self.holds

    def __repr__(self) -> str:
        stop = self.start + self.tokens
        return (
            f"RetentionRecord([{self.start}, {stop}), {self.nbytes} bytes, {self.uses} uses, {self.children} children)"
        )


class Retention(Protocol):
    """Ranks the segments of one tier. See the module for what to tell it when."""

    name: ClassVar[str]

    def inserted(self, record: RetentionRecord, now: float) -> None: ...

    def used(self, chain: Sequence[RetentionRecord], now: float) -> None: ...

    def retraced(self, record: RetentionRecord, now: float) -> None: ...

    def removed(self, record: RetentionRecord, now: float) -> None: ...

    def hold(self, record: RetentionRecord) -> None: ...

    def release(self, record: RetentionRecord) -> None: ...

    def victim(self, now: float) -> RetentionRecord | None: ...


class RetentionQueue:
    """Records in the order of a number, lowest first, the deeper one first among equals.

    A record that leaves keeps its entry in the heap until it comes up or half of all entries are such.
    """

    __slots__ = ("_heap", "_live")

    _tickets = count(1)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, RetentionRecord]] = []
        self._live = 0

    def push(self, record: RetentionRecord, order: float) -> None:
        record.queue, record.ticket = self, next(self._tickets)
        self._live += 1
        heappush(self._heap, (order, -record.start, record.ticket, record))

    def withdraw(self, record: RetentionRecord) -> None:
        record.queue, record.ticket = None, 0
        self._live -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].ticket]
            heapify(self._heap)

    def first(self) -> RetentionRecord | None:
        while self._heap:
            _order, _depth, ticket, record = self._heap[0]
            if ticket == record.ticket:
                return record
            heappop(self._heap)
        return None


class LeafFirst:
    """Keeps the records of a tier up to date, and those that may go in queues. What goes first is the policy's."""

    def inserted(self, record: RetentionRecord, now: float) -> None:  # noqa: ARG002 (policies that learn go by it)
        parent = record.parent
        if parent is not None:
            record.follows_use = not parent.children and (parent.uses > 0 or parent.follows_use)
            parent.last_child = record
            parent.children += 1
            parent.branches += 1
            self._withdraw(parent)
        self._settle(record)

    def used(self, chain: Sequence[RetentionRecord], now: float) -> None:
        if not chain:
            return
        is_shared = chain[-1].children > 0
        for record in chain:
            record.uses += 1
            record.shared_uses += is_shared
            if record.parent is not None:
                record.parent.last_child = record
            self._renew(record, now)

    def retraced(self, record: RetentionRecord, now: float) -> None:
        """A request went a way that had been gone before, up to here: what follows may be asked for next."""

    def removed(self, record: RetentionRecord, now: float) -> None:  # noqa: ARG002 (policies that learn go by it)
        if record.children:
            raise ValueError(f"{record!r} is removed before its children")
        self._withdraw(record)
        parent = record.parent
        if parent is not None:
            parent.children -= 1
            if parent.last_child is record:
                parent.last_child = None
            self._settle(parent)

    def hold(self, record: RetentionRecord) -> None:
        record.holds += 1
        self._withdraw(record)

    def release(self, record: RetentionRecord) -> None:
        if record.holds < 1:
            raise ValueError(f"{record!r} is not held")
        record.holds -= 1
        self._settle(record)

    def _renew(self, record: RetentionRecord, now: float) -> None:
        record.last_used = now
        if record.queue is not None:
            self._withdraw(record)
            self._settle(record)

    def _settle(self, record: RetentionRecord) -> None:
        """Queue a record that may go."""
        if record.queue is None and record.is_evictable:
            self._enqueue(record)

    @staticmethod
    def _withdraw(record: RetentionRecord) -> None:
        if record.queue is not None:
            record.queue.withdraw(record)

    def _enqueue(self, record: RetentionRecord) -> None:
        raise NotImplementedError


class Fifo(LeafFirst):
    """What was stored first goes first."""

    name: ClassVar[str] = "fifo"

    def __init__(self) -> None:
        self._queue = RetentionQueue()

    def _enqueue(self, record: RetentionRecord) -> None:
        self._queue.push(record, record.created_at)

    def victim(self, now: float) -> RetentionRecord | None:  # noqa: ARG002
        return self._queue.first()


class Lru(LeafFirst):
    """What was not used for the longest time goes first."""

    name: ClassVar[str] = "lru"

    def __init__(self) -> None:
        self._queue = RetentionQueue()

    def _enqueue(self, record: RetentionRecord) -> None:
        self._queue.push(record, record.last_used)

    def victim(self, now: float) -> RetentionRecord | None:  # noqa: ARG002
        return self._queue.first()
