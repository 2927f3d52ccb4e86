"""Which stored segments can be restored at all: each needs the whole row of those it goes on from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from forerun.core.prompt import PromptLayout
from forerun.core.segment import SegmentHeader, StoredSegment


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A row of segments from the start of a prompt to one that nothing goes on from."""

    segments: tuple[StoredSegment, ...]

    @property
    def tokens(self) -> int:
        """Logical tokens that can be restored."""
        return self.segments[-1].header.stop.logical_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of all files, those that other conversations share included."""
        return sum(segment.nbytes for segment in self.segments)

    @property
    def last_used(self) -> float:
        """Seconds since the epoch."""
        return max(segment.last_used for segment in self.segments)

    @property
    def layout(self) -> PromptLayout:
        """All of its text and media: of each segment what lies before its successor's start."""
        content = list(self.segments[-1].header.content)
        for segment, after in zip(self.segments[-2::-1], self.segments[:0:-1], strict=True):
            start = segment.header.start.logical_tokens
            kept = PromptLayout(segment.header.content).slice_segments(0, after.header.start.logical_tokens - start)
            content[:0] = kept
        return PromptLayout(content)


class SegmentChains:
    """Stored segments by what they go on from."""

    def __init__(self, segments: Iterable[StoredSegment]) -> None:
        self._by_key = {segment.header.key: segment for segment in segments}
        self._children: dict[str, list[StoredSegment]] = defaultdict(list)
        for segment in self._by_key.values():
            self._children[segment.header.parent].append(segment)
        self.whole = self._reached()
        """Those that can be restored, parents before children."""

    def _reached(self) -> list[StoredSegment]:
        reached = self.after("")
        for segment in reached:  # grows while it is walked
            reached += self.after(segment.header.key)
        return reached

    def after(self, key: str) -> list[StoredSegment]:
        """What goes on from a segment, or with "" begins a prompt."""
        parent = self._by_key.get(key)
        return [
            child
            for child in self._children.get(key, ())
            if (_begins(child.header) if parent is None else _goes_on(child.header, parent.header))
        ]

    @property
    def stranded(self) -> list[StoredSegment]:
        """Those whose row is broken: of no use until what they go on from is there again."""
        whole = {segment.header.key for segment in self.whole}
        return [segment for key, segment in self._by_key.items() if key not in whole]

    def conversations(self) -> list[StoredConversation]:
        """One for each segment that nothing goes on from, the last used first."""
        ends = [segment for segment in self.whole if not self.after(segment.header.key)]
        found = [StoredConversation(tuple(self._row_to(end))) for end in ends]
        return sorted(found, key=lambda conversation: conversation.last_used, reverse=True)

    def _row_to(self, segment: StoredSegment) -> list[StoredSegment]:
        row = [segment]
        while row[-1].header.parent:
            row.append(self._by_key[row[-1].header.parent])
        return row[::-1]


def _begins(header: SegmentHeader) -> bool:
    return header.start.logical_tokens == 0 == header.start.native_position


def _goes_on(child: SegmentHeader, parent: SegmentHeader) -> bool:
    """Whether a child starts inside its parent, or where it stops."""
    start = PromptLayout(parent.content).boundary_at(child.start.logical_tokens - parent.start.logical_tokens)
    return (
        child.scope == parent.scope
        and start is not None
        and parent.start.native_position + start.native_position == child.start.native_position
        and parent.start.media_tokens + start.media_tokens == child.start.media_tokens
    )
