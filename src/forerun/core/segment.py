"""Stored runs of KV: what identifies one, and the store that keeps their bytes.

A conversation's KV leaves the pool in segments of at most SEGMENT_TOKENS tokens. Each goes on from another one, its
parent, at the parent's end or, where two conversations part, before it:

    [0 ... 512) ──► [512 ... 1024) ──► [1024 ... 1300)          one conversation
                         └─ at 700 ──► [700 ... 1212)           another one with the same first 700 tokens

To restore 1,212 tokens of the second one: all of the first segment, [512, 700) of the second, all of the third. Where
memory has a state (recurrent, hybrid) each segment ends with the state at its stop, so that it is a checkpoint too: it
is restored whole, and a child starts exactly where its parent stops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forerun.core.prefix import PromptCheckpointState
from forerun.core.prompt import PromptBoundary, PromptSegment

SEGMENT_TOKENS = 512
"""A stored run has at most so many text tokens: a copy takes a millisecond or two, and eviction is fine-grained."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """All that must agree for stored KV to be used again. Equal keys mean equal content."""

    key: str
    """`segment_key` of what follows: 32 hexadecimal digits."""
    parent: str
    """Key of the segment it goes on from; "" at the start of a prompt."""
    scope: str
    """Whose KV it is, and with which adapters (core.adapters.scope_of); "" for the default. Never matches another."""
    start: PromptBoundary
    stop: PromptBoundary
    content: tuple[PromptSegment, ...]
    """What lies between start and stop."""
    draft_stop: int
    """The draft's part ends before this token of text; `start.text_tokens` where there is none."""
    whole_from: int = 0
    """First native position from which a sliding window's cells are all there; 0 without a window."""

    @property
    def tokens(self) -> int:
        """Logical tokens."""
        return self.stop.logical_tokens - self.start.logical_tokens


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """Bytes that segments take in host memory: so many each, and so many more for every token of target and draft."""

    per_segment: int = 0
    per_token: int = 0
    per_draft_token: int = 0

    def predict(self, tokens: int, draft_tokens: int = 0) -> int:
        """Bytes of a segment; exact where memory is dense."""
        return self.per_segment + tokens * self.per_token + draft_tokens * self.per_draft_token


def segment_key(
    model_key: str, scope: str, parent: str, start: PromptBoundary, content: Sequence[PromptSegment]
) -> str:
    """SHA-256 over everything KV depends on, the first 32 hexadecimal digits.

    `model_key` covers what the engine was loaded with: model and draft, KV types, rope settings, build. Where media lie
    before it, how many tokens of them do is a part of where it starts: the draft's positions follow from that.
    """
    digest = hashlib.sha256()
    at = f"{start.logical_tokens},{start.native_position}" + (f",{start.media_tokens}" if start.media_tokens else "")
    for text in (model_key, scope, parent, at):
        digest.update(text.encode() + b"\0")
    for segment in content:
        if segment.media_span is None:
            digest.update(b"t%d\0" % segment.logical_tokens + segment.tokens.tobytes())
        else:
            span = segment.media_span
            identity = span.identity.encode()
            digest.update(b"m%d,%d,%d\0" % (len(identity), span.logical_tokens, span.native_positions) + identity)
    return digest.hexdigest()[:32]


class StoreEventKind(StrEnum):
    """What a store finished in the background."""

    PERSISTED = "persisted"
    """A segment is safe on disk; `nbytes` of the file."""
    PERSIST_FAILED = "persist failed"
    """It is not: no room, no permission, a broken disk, or gone from the host tier before it was written."""
    FETCHED = "fetched"
    """A segment is in the host tier; `nbytes` there."""
    FETCH_FAILED = "fetch failed"
    """Its file is torn, tampered with, foreign or gone. It has been removed, and is not to be asked for again."""
    FETCH_REFUSED = "fetch refused"
    """The host tier has no room for it. Its file stays: make room, then ask again."""


@dataclass(frozen=True, slots=True)
class StoreEvent:
    kind: StoreEventKind
    key: str
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment found on disk at start."""

    header: SegmentHeader
    nbytes: int
    """Bytes of its file."""
    host_bytes: int
    """Bytes it takes in the host tier."""
    last_used: float
    """Seconds since the epoch."""


class SegmentStore(Protocol):
    """Keeps the bytes of segments: in host memory, and on disk where it has one. Used by the engine's thread only.

    It keeps to hard byte budgets by refusing; what goes to make room is the scheduler's to decide (core/tiers.py). No
    call waits for a disk but `wait` and `close`.
    """

    def put(self, header: SegmentHeader, state: PromptCheckpointState) -> int:
        """Take a segment into host memory; how many bytes it takes there, 0 where the budget has no room for it."""
        ...

    def get(self, key: str) -> PromptCheckpointState:
        """A segment in host memory. Raises KeyError."""
        ...

    def drop(self, key: str) -> None:
        """Forget a segment in host memory, if it is there. A file of it stays; one being written is written.

        A fetch of it that has not ended ends without an event, and without bytes left in host memory.
        """
        ...

    def persist(self, key: str) -> None:
        """Begin to write a segment that is in host memory to disk; ends with an event."""
        ...

    def fetch(self, key: str) -> None:
        """Begin to read a segment into host memory, checking every byte; ends with an event."""
        ...

    def remove(self, key: str) -> None:
        """Begin to delete a segment's file, if there is one; no event, also not of an earlier persist any more."""
        ...

    def take_events(self) -> list[StoreEvent]:
        """What was finished since the last call."""
        ...

    def wait(self, seconds: float) -> None:
        """Return once an event is there, or after so many seconds."""
        ...

    def close(self) -> None:
        """Finish what is being written (within a bounded time), then stop. Safe to call again."""
        ...
