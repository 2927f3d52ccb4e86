"""The store of segments: host memory, and a disk behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from forerun.cache.disk_tier import DiskTier, PendingRead
from forerun.cache.host import HostSegment, HostTier
from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import SegmentHeader, StoreEvent, StoreEventKind

ORPHANS_SHARE: Final = 16
"""Segments dropped from host memory before they are written take 1/16 of its budget beside it at most."""
CLOSE_SECONDS: Final = 10.0
_PERSIST_EVENTS: Final = frozenset({StoreEventKind.PERSISTED, StoreEventKind.PERSIST_FAILED})
_FETCH_EVENTS: Final = frozenset(StoreEventKind) - _PERSIST_EVENTS


class TieredStore:
    """Implements core.segment.SegmentStore. Owns both tiers; used by the engine's thread.

    A `persist` or `fetch` of what is on its way already ends with the event of the first one.
    """

    def __init__(self, host: HostTier, disk: DiskTier | None = None, clock: Callable[[], float] = time.time) -> None:
        self.host = host
        self.disk = disk
        self._clock = clock
        self._events: list[StoreEvent] = []
        self._fetching: dict[str, PendingRead] = {}
        self._orphans: dict[str, int] = {}
        """Bytes of what was dropped before it was written."""
        self._last_used: dict[str, float] = {}

    @property
    def disk_budget(self) -> int:
        """Bytes that files of this model may take; 0 without a disk."""
        return 0 if self.disk is None else self.disk.budget

    def put(self, header: SegmentHeader, state: PromptCheckpointState) -> int:
        """Take a segment into host memory; how many bytes it takes there, 0 where the budget has no room for it."""
        return self.host.put(HostSegment(header, state))

    def get(self, key: str) -> PromptCheckpointState:
        """A segment in host memory. Raises KeyError."""
        held = self.host.find(key)
        if held is None:
            raise KeyError(key)
        if self.disk is not None:
            self._last_used[key] = self._clock()
        return held.state

    def drop(self, key: str) -> None:
        """Forget a segment in host memory, or on its way there. A file of it stays; one being written is written.

        Unless there are too many bytes of that kind: then it is not, and its persist fails.
        """
        self._forget_events(key, _FETCH_EVENTS)
        read = self._fetching.pop(key, None)
        if read is not None:
            read.is_cancelled = True
            self.host.release(read.segment.host_bytes)
        dropped = self.host.drop(key)
        if dropped is None or self.disk is None:
            return
        self._note_use(self.disk, key)
        write = self.disk.pending(key)
        if write is None or write.segment is not dropped:
            return
        orphans = sum(self._orphans.values())
        if orphans and orphans + dropped.nbytes > self.host.budget // ORPHANS_SHARE:
            write.cancel()
        else:
            self._orphans[key] = dropped.nbytes

    def persist(self, key: str) -> None:
        """Begin to write a segment that is in host memory to disk; ends with an event."""
        held = self.host.find(key)
        if held is None or self.disk is None:
            self._tell(StoreEventKind.PERSIST_FAILED, key)
            return
        write = self.disk.pending(key)
        if write is None:
            self.disk.write(held, lambda nbytes: self._end_persist(key, nbytes))
        elif write.header != held.header or write.segment is None:  # something else is on its way under its name
            self._tell(StoreEventKind.PERSIST_FAILED, key)

    def _end_persist(self, key: str, nbytes: int | None) -> None:
        self._orphans.pop(key, None)
        if nbytes is None:
            self._tell(StoreEventKind.PERSIST_FAILED, key)
        else:
            self._tell(StoreEventKind.PERSISTED, key, nbytes)

    def fetch(self, key: str) -> None:
        """Begin to read a segment into host memory, checking every byte; ends with an event."""
        if key in self._fetching:
            return
        held = self.host.find(key)
        if held is not None:
            self._tell(StoreEventKind.FETCHED, key, held.nbytes)
        elif self.disk is None:
            self._tell(StoreEventKind.FETCH_FAILED, key)
        else:
            self._fetch(self.disk, key)

    def _fetch(self, disk: DiskTier, key: str) -> None:
        write, stored = disk.pending(key), disk.find(key)
        if write is not None and write.segment is not None:  # dropped, and not written yet: the bytes are here
            nbytes = self.host.put(write.segment)
            if nbytes:
                self._orphans.pop(key, None)
            self._tell(StoreEventKind.FETCHED if nbytes else StoreEventKind.FETCH_REFUSED, key, nbytes)
        elif stored is None:
            self._tell(StoreEventKind.FETCH_FAILED, key)
        elif not self.host.reserve(stored.host_bytes):
            self._tell(StoreEventKind.FETCH_REFUSED, key)
        else:
            read = self._fetching[key] = PendingRead(stored)
            disk.read(read, lambda state: self._end_fetch(read, state))

    def _end_fetch(self, read: PendingRead, state: PromptCheckpointState | None) -> None:
        if read.is_cancelled:
            return
        key = read.segment.header.key
        del self._fetching[key]
        self.host.release(read.segment.host_bytes)
        held = self.host.find(key)
        if held is not None:  # put meanwhile
            self._tell(StoreEventKind.FETCHED, key, held.nbytes)
        elif state is None:
            self._tell(StoreEventKind.FETCH_FAILED, key)
        else:
            self._tell(StoreEventKind.FETCHED, key, self.host.put(HostSegment(read.segment.header, state)))

    def remove(self, key: str) -> None:
        """Begin to delete a segment's file, if there is one, or is to be."""
        self._forget_events(key, _PERSIST_EVENTS)
        if self.disk is not None:
            self.disk.remove(key)

    def take_events(self) -> list[StoreEvent]:
        """What was finished since the last call."""
        if self.disk is not None:
            self.disk.finish()
        events, self._events = self._events, []
        return events

    def wait(self, seconds: float) -> None:
        """Return once an event is there, or after so many seconds; at once where nothing is going on."""
        if self.disk is not None and not self._events:
            self.disk.wait(seconds)

    def close(self) -> None:
        """Finish what is being written, for CLOSE_SECONDS, then stop. Safe to call again."""
        if self.disk is not None:
            for key in list(self._last_used):
                self._note_use(self.disk, key)
            self.disk.close(CLOSE_SECONDS)

    def _note_use(self, disk: DiskTier, key: str) -> None:
        last_used = self._last_used.pop(key, None)
        if last_used is not None:
            disk.touch(key, last_used)

    def _tell(self, kind: StoreEventKind, key: str, nbytes: int = 0) -> None:
        self._events.append(StoreEvent(kind, key, nbytes))

    def _forget_events(self, key: str, kinds: frozenset[StoreEventKind]) -> None:
        self._events = [event for event in self._events if event.key != key or event.kind not in kinds]

    def check_integrity(self) -> None:
        """Raises AssertionError where an account is not that of what it counts."""
        self.host.check_integrity()
        if self.disk is not None:
            self.disk.check_integrity()

    def __repr__(self) -> str:
        return f"TieredStore({self.host}, {self.disk})"
