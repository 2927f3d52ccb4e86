"""Stored segments as the catalog knows them: where each is, what a prompt uses of them, and the tier they lie in."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.prompt import PromptBoundary
from forerun.core.retention import Retention, RetentionRecord
from forerun.core.segment import SegmentHeader


class KvSegment:
    """One stored run of KV: where it is, and what it goes on from."""

    __slots__ = (
        "children",
        "disk",
        "header",
        "host",
        "host_bytes",
        "is_fetching",
        "is_persisting",
        "is_storing",
        "lost_to",
        "parent",
        "was_fetched",
    )

    def __init__(self, header: SegmentHeader, parent: KvSegment | None) -> None:
        self.header = header
        self.parent = parent
        self.children: dict[KvSegment, None] = {}
        """In order: what goes first when it is dropped must not depend on where objects lie in memory."""
        self.host: RetentionRecord | None = None
        """Its record in the host tier, while it is there or on its way there."""
        self.disk: RetentionRecord | None = None
        """The same of the disk tier."""
        self.host_bytes = 0
        """What it takes in the host tier, or took when it was there last."""
        self.is_storing = False
        """A copy of it to the host tier was planned, and is not known to have worked."""
        self.is_fetching = False
        """It is on its way from disk: nothing can be restored from it yet."""
        self.is_persisting = False
        """It is being written to disk."""
        self.was_fetched = False
        """It came back from disk, and was not used since."""
        self.lost_to = ""
        """The request that it had to make room for; "" where it was dropped for another reason."""

    @property
    def is_kept(self) -> bool:
        """Whether it is anywhere."""
        return self.host is not None or self.disk is not None

    @property
    def is_lost(self) -> bool:
        return not self.is_kept

    @property
    def is_at_hand(self) -> bool:
        """Whether it can be restored by the next operation."""
        return self.host is not None and not self.is_fetching

    def __repr__(self) -> str:
        where = "host " * (self.host is not None) + "disk " * (self.disk is not None)
        start, stop = self.header.start.logical_tokens, self.header.stop.logical_tokens
        return f"KvSegment([{start}, {stop}) {where or 'lost '}{self.header.key[:8]})"


@dataclass(frozen=True, slots=True)
class Part:
    """What a prompt uses of a segment."""

    segment: KvSegment
    start: PromptBoundary
    stop: PromptBoundary

    def tokens_beyond(self, held: int) -> int:
        """Logical tokens of it behind the first `held` ones of the prompt."""
        return max(self.stop.logical_tokens - max(self.start.logical_tokens, held), 0)

    @property
    def whole_from(self) -> int:
        """First native position from which a sliding window's cells are there; 0 where none of it is missing."""
        missing_before = self.segment.header.whole_from
        return min(missing_before, self.stop.native_position) if missing_before > self.start.native_position else 0


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """A prefix of a prompt that stored segments hold, first part first."""

    parts: tuple[Part, ...] = ()

    @property
    def boundary(self) -> PromptBoundary:
        return self.parts[-1].stop if self.parts else PromptBoundary.START

    @property
    def whole_from(self) -> int:
        """First native position from which a sliding window's cells are all there, once it is restored."""
        return max((part.whole_from for part in self.parts), default=0)

    @property
    def missing(self) -> list[KvSegment]:
        """Segments that have to be fetched, or are on their way."""
        return [part.segment for part in self.parts if not part.segment.is_at_hand]


class Tier:
    """Segments in one place, within a hard budget of bytes."""

    def __init__(self, capacity: int, retention: Retention) -> None:
        self.capacity = capacity
        self.used = 0
        self.retention = retention

    def insert(self, record: RetentionRecord, now: float) -> None:
        self.used += record.nbytes
        self.retention.inserted(record, now)

    def remove(self, record: RetentionRecord, now: float) -> None:
        self.used -= record.nbytes
        self.retention.removed(record, now)

    def resize(self, record: RetentionRecord, nbytes: int) -> None:
        self.used += nbytes - record.nbytes
        record.nbytes = nbytes
