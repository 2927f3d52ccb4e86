"""Segments in host memory, within a hard budget of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import SegmentHeader

SEGMENT_OVERHEAD: Final = 4096
"""Bytes that a segment is counted with beside its state: 512 token ids (2 KiB) and the objects around them."""


@dataclass(frozen=True, slots=True)
class HostSegment:
    """A segment in host memory."""

    header: SegmentHeader
    state: PromptCheckpointState

    @property
    def nbytes(self) -> int:
        return host_bytes(state_bytes(self.state))


def state_bytes(state: PromptCheckpointState) -> int:
    """Bytes of a state's buffer, whatever kind of buffer it is."""
    return memoryview(state.state).nbytes


def host_bytes(payload_bytes: int) -> int:
    """What a segment with such a payload counts."""
    return payload_bytes + SEGMENT_OVERHEAD


class HostTier:
    """Owns what is in host memory, and room that is promised to what is being read. Used by one thread.

    States are kept as they are given, without a copy: they must not change afterwards, and one that is a view of a
    larger buffer is counted as what it shows.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """Bytes; `used` is never more."""
        self._segments: dict[str, HostSegment] = {}
        self._held = 0
        self._reserved = 0

    @property
    def used(self) -> int:
        """Bytes of all segments, and those promised."""
        return self._held + self._reserved

    def put(self, segment: HostSegment) -> int:
        """Take a segment, in place of one with its key; what it counts. 0 without room: then nothing changes."""
        key = segment.header.key
        old = self._segments.get(key)
        growth = segment.nbytes - (old.nbytes if old else 0)
        if self.used + growth > self.budget:
            return 0
        self._segments[key] = segment
        self._held += growth
        return segment.nbytes

    def find(self, key: str) -> HostSegment | None:
        return self._segments.get(key)

    def drop(self, key: str) -> HostSegment | None:
        """Forget a segment; what it was."""
        segment = self._segments.pop(key, None)
        if segment is not None:
            self._held -= segment.nbytes
        return segment

    def reserve(self, nbytes: int) -> bool:
        """Promise room to what is being read; False where there is none."""
        if self.used + nbytes > self.budget:
            return False
        self._reserved += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Take a promise back: what was read can be put now, or never will be."""
        self._reserved -= nbytes

    def check_integrity(self) -> None:
        """Raises AssertionError where the count is not that of what is here."""
        assert self._held == sum(segment.nbytes for segment in self._segments.values())
        assert all(key == segment.header.key for key, segment in self._segments.items())
        assert self._reserved >= 0
        assert self.used <= self.budget

    def __len__(self) -> int:
        return len(self._segments)

    def __repr__(self) -> str:
        return f"HostTier({len(self)} segments, {self.used} of {self.budget} bytes)"
