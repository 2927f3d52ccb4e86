"""A store of segments in two dicts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import (
    SegmentHeader,
    SegmentSizes,
    StoredSegment,
    StoreEvent,
    StoreEventKind,
)


class FakeStore:
    """Implements core.segment.SegmentStore in two dicts.

    `faults` is asked with "put", "persist", "fetch" or "get" and the key, and says what goes wrong; events come with
    the next `take_events` but `delay`. `scan` gives what is on the fake disk, for an engine that starts again.
    """

    def __init__(
        self, capacity: int = 2**40, faults: Callable[[str, str], bool] = lambda _kind, _key: False, delay: int = 0
    ) -> None:
        self.host: dict[str, tuple[SegmentHeader, PromptCheckpointState]] = {}
        self.disk: dict[str, tuple[SegmentHeader, PromptCheckpointState]] = {}
        self.capacity = capacity
        self.faults = faults
        self.is_closed = False
        self._delay = delay
        self._calls = 0
        self._pending: list[tuple[int, StoreEvent]] = []
        self._fetched: dict[str, tuple[SegmentHeader, PromptCheckpointState]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes in host memory."""
        return sum(len(state.state) for _, state in self.host.values())

    @property
    def in_transit(self) -> set[str]:
        """Keys of which nobody has been told yet what became of them."""
        return {event.key for _, event in self._pending}

    def put(self, header: SegmentHeader, state: PromptCheckpointState) -> int:
        if self.faults("put", header.key) or self.nbytes + len(state.state) > self.capacity:
            return 0
        self.host[header.key] = (header, state)
        return len(state.state)

    def get(self, key: str) -> PromptCheckpointState:
        if self.faults("get", key):
            raise KeyError(key)
        return self.host[key][1]

    def drop(self, key: str) -> None:
        self.host.pop(key, None)
        self._fetched.pop(key, None)
        self._forget_events(key, {StoreEventKind.FETCHED, StoreEventKind.FETCH_FAILED})

    def persist(self, key: str) -> None:
        if key not in self.host or self.faults("persist", key):
            self._later(StoreEvent(StoreEventKind.PERSIST_FAILED, key))
        else:
            self.disk[key] = self.host[key]
            self._later(StoreEvent(StoreEventKind.PERSISTED, key, len(self.disk[key][1].state)))

    def fetch(self, key: str) -> None:
        if key not in self.disk or self.faults("fetch", key):
            self.disk.pop(key, None)
            self._later(StoreEvent(StoreEventKind.FETCH_FAILED, key))
        else:
            self._fetched[key] = self.disk[key]
            self._later(StoreEvent(StoreEventKind.FETCHED, key, len(self.disk[key][1].state)))

    def remove(self, key: str) -> None:
        self.disk.pop(key, None)
        self._forget_events(key, {StoreEventKind.PERSISTED, StoreEventKind.PERSIST_FAILED})

    def _forget_events(self, key: str, kinds: set[StoreEventKind]) -> None:
        self._pending = [(due, one) for due, one in self._pending if one.key != key or one.kind not in kinds]

    def _later(self, event: StoreEvent) -> None:
        self._pending.append((self._calls + self._delay, event))

    def take_events(self) -> list[StoreEvent]:
        self._calls += 1
        done = [event for due, event in self._pending if due < self._calls]
        self._pending = [(due, event) for due, event in self._pending if due >= self._calls]
        for event in done:
            fetched = self._fetched.pop(event.key, None) if event.kind is StoreEventKind.FETCHED else None
            if fetched is not None:
                self.host[event.key] = fetched
        return done

    def wait(self, seconds: float) -> None:  # noqa: ARG002
        self._calls += self._delay

    def restarted(self) -> FakeStore:
        """A store after kill -9: what was on disk is there, nothing else."""
        fresh = FakeStore(self.capacity, self.faults, self._delay)
        fresh.disk = dict(self.disk)
        return fresh

    def scan(self) -> list[StoredSegment]:
        """What is on disk, as a store that starts finds it."""
        sizes = [(header, len(state.state)) for header, state in self.disk.values()]
        return [StoredSegment(header, size, size, float(index)) for index, (header, size) in enumerate(sizes)]

    def close(self) -> None:
        self.is_closed = True


FAKE_SIZES = SegmentSizes(per_segment=3 * 24, per_token=24, per_draft_token=24)
"""What FakeRunner's segments take at most: three numbers of 8 bytes for every cell, and for each range of them."""


def packed(*ranges: NDArray[np.int64]) -> bytes:
    """Exported cells of target and draft as one state: how many rows the first has, then the rows of both."""
    count = np.array([(len(ranges[0]), 0, 0)], np.int64)
    return np.concatenate((count, *ranges)).tobytes()


def unpacked(state: bytes | memoryview) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.frombuffer(state, np.int64).reshape(-1, 3)
    split = 1 + int(rows[0, 0])
    return rows[1:split], rows[split:]
