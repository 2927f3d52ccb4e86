"""Coordinates of a prompt: boundaries, segments and layouts.

A prompt is a row of segments. Text counts one logical token and one native KV position a token. A media span counts the
tokens it embeds to, and the native positions it takes (fewer under M-RoPE); it is indivisible.

    segments   [ text 2 | image 576 tokens, 1 position | text 2 ]
    logical    0  1     2                           578  579  580
    native     0  1     2                             3    4    5
    text       0  1     2                             2    3    4      what a draft model sees
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int32]
"""A one-dimensional array of token ids."""

INT32_MAX = 2**31 - 1
_FIRST_COMPARE, _COMPARE = 1024, 32768


@dataclass(frozen=True, slots=True)
class SpeculativePosition:
    """One point of a prompt in both memories: a native position of the target, a dense token index of the draft."""

    target: int
    draft: int


@dataclass(frozen=True, slots=True)
class PromptBoundary:
    """One point of a prompt.

    `logical_tokens` counts tokens before it, media spans counting what they embed to (`media_tokens` of them);
    `native_position` is the next position in the target's KV memory.
    """

    logical_tokens: int
    native_position: int
    media_tokens: int = field(default=0, compare=False, repr=False)
    """Follows from the prompt: boundaries with equal coordinates are equal, and shown by these."""

    START: ClassVar[PromptBoundary]

    def __post_init__(self) -> None:
        if self.logical_tokens < 0 or self.native_position < 0:
            raise ValueError(f"a boundary is not negative: ({self.logical_tokens}, {self.native_position})")

    def advance(self, tokens: int) -> PromptBoundary:
        """The boundary `tokens` text tokens further on, in both coordinates."""
        return PromptBoundary(self.logical_tokens + tokens, self.native_position + tokens, self.media_tokens)

    def behind(self, segments: Iterable[PromptSegment]) -> PromptBoundary:
        """The boundary behind some segments that go on here."""
        logical, native, media = self.logical_tokens, self.native_position, self.media_tokens
        for segment in segments:
            logical += segment.logical_tokens
            native += segment.native_positions
            media += segment.logical_tokens * segment.is_media
        return PromptBoundary(logical, native, media)

    @property
    def text_tokens(self) -> int:
        """Tokens of text before it."""
        return self.logical_tokens - self.media_tokens

    def text_position(self) -> SpeculativePosition:
        """Where they are cut if the draft reads the text alone."""
        return SpeculativePosition(target=self.native_position, draft=self.text_tokens)

    def speculative_position(self) -> SpeculativePosition | None:
        """Where target and draft memories are cut here if the draft reads media too, or None where a coordinate leaves
        int32."""
        if self.logical_tokens > INT32_MAX or self.native_position > INT32_MAX:
            return None
        return SpeculativePosition(target=self.native_position, draft=self.logical_tokens)


PromptBoundary.START = PromptBoundary(0, 0)


def as_tokens(tokens: Iterable[int] | Tokens) -> Tokens:
    """Token ids as a read-only int32 array. Raises ValueError for anything but a flat row of ids in [0, 2**31).

    Always a copy: even a read-only array may be a view of one that somebody else goes on writing to.
    """
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1:
        array = tokens.copy()
    else:
        array = _checked_int32(tokens)
    if array.size and int(array.min()) < 0:
        raise ValueError(f"token ids are not negative, got {int(array.min())}")
    array.flags.writeable = False
    return array


def _checked_int32(tokens: Iterable[int] | NDArray[np.generic]) -> Tokens:
    wide = np.asarray(tokens if isinstance(tokens, np.ndarray | Sequence) else list(tokens))
    if wide.size == 0:
        return np.empty(0, np.int32)
    if wide.ndim != 1 or wide.dtype.kind not in "iu":
        raise ValueError(f"token ids are a flat row of integers, got {wide.dtype} of shape {wide.shape}")
    if int(wide.max()) > INT32_MAX or int(wide.min()) < 0:
        raise ValueError(f"token ids lie in [0, {INT32_MAX}], got {int(wide.min())} to {int(wide.max())}")
    return wide.astype(np.int32)


def shared_length(a: Tokens, b: Tokens) -> int:
    """How many leading tokens two arrays share; compares in chunks, so an early difference is found early."""
    limit = min(a.size, b.size)
    start = 0
    size = _FIRST_COMPARE
    while start < limit:
        stop = min(start + size, limit)
        different = a[start:stop] != b[start:stop]
        first = int(different.argmax())
        if different[first]:
            return start + first
        start = stop
        size = _COMPARE
    return limit


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """What identifies an indivisible media span: equal spans have equal KV."""

    identity: str
    logical_tokens: int
    native_positions: int


class MediaItem(Protocol):
    """A picture or a sound, decoded. What is in it only its encoder knows."""

    @property
    def digest(self) -> str:
        """Equal ones are the same."""
        ...


_NO_MEDIA: Mapping[str, MediaItem] = MappingProxyType({})


class PromptSegment:
    """Text (token ids) or one media span. Immutable; build with `text` or `media`."""

    __slots__ = ("logical_tokens", "media_span", "native_positions", "tokens")

    tokens: Tokens
    """Token ids of text; empty for media."""
    media_span: MediaSpan | None
    logical_tokens: int
    native_positions: int

    def __init__(self, tokens: Tokens, media_span: MediaSpan | None) -> None:
        self.tokens = tokens
        self.media_span = media_span
        self.logical_tokens = media_span.logical_tokens if media_span else tokens.size
        self.native_positions = media_span.native_positions if media_span else tokens.size

    @classmethod
    def text(cls, tokens: Iterable[int] | Tokens) -> Self:
        """A run of text. Raises ValueError for ids outside [0, 2**31)."""
        return cls(as_tokens(tokens), None)

    @classmethod
    def media(cls, identity: str, logical_tokens: int, native_positions: int) -> Self:
        """A media span of `logical_tokens` embeddings in `native_positions` KV positions.

        `identity` covers the decoded content, its size, the media type and every preprocessing setting.
        """
        if not identity:
            raise ValueError("a media span needs an identity")
        if logical_tokens < 1 or native_positions < 1:
            raise ValueError(f"a media span has extent, got {logical_tokens} tokens, {native_positions} positions")
        return cls(np.empty(0, np.int32), MediaSpan(identity, logical_tokens, native_positions))

    @property
    def is_media(self) -> bool:
        return self.media_span is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PromptSegment):
            return NotImplemented
        return self.media_span == other.media_span and np.array_equal(self.tokens, other.tokens)

    def __hash__(self) -> int:
        return hash((self.media_span, self.tokens.tobytes()))

    def __repr__(self) -> str:
        span = self.media_span
        if span is None:
            return f"text({self.logical_tokens})"
        return f"media({span.identity!r}, {span.logical_tokens} tokens, {span.native_positions} positions)"


class PromptLayout:
    """A whole prompt: normalised segments (neighbouring text joined, empty text dropped). Immutable."""

    __slots__ = ("_logical_starts", "_starts", "end", "media", "segments")

    segments: tuple[PromptSegment, ...]
    end: PromptBoundary
    """The boundary after the last segment."""

    def __init__(self, segments: Iterable[PromptSegment] = (), media: Mapping[str, MediaItem] = _NO_MEDIA) -> None:
        self.media = media
        """What media spans are spans of, by identity, where the prompt brings it along. No part of what it is: layouts
        made of this one, and those that travelled, have none."""
        self.segments = tuple(_normalised(segments))
        self._starts: list[PromptBoundary] = []
        self.end = PromptBoundary.START
        for segment in self.segments:
            self._starts.append(self.end)
            self.end = self.end.behind([segment])
        self._logical_starts = [start.logical_tokens for start in self._starts]

    @classmethod
    def of_text(cls, tokens: Iterable[int] | Tokens) -> Self:
        """A prompt of text alone."""
        return cls([PromptSegment.text(tokens)])

    @property
    def logical_tokens(self) -> int:
        return self.end.logical_tokens

    @property
    def native_positions(self) -> int:
        return self.end.native_position

    @property
    def text_tokens(self) -> Tokens:
        """All text token ids in order, media left out."""
        return _joined([segment.tokens for segment in self.segments if not segment.is_media])

    def _index_at(self, logical: int) -> int:
        """The segment that holds the token at `logical`, or starts there."""
        return bisect_right(self._logical_starts, logical) - 1

    def boundary_at(self, logical: int) -> PromptBoundary | None:
        """The boundary at a logical index; None inside a media span or outside the prompt."""
        boundary = self.boundary_at_or_after(logical)
        return boundary if boundary is not None and boundary.logical_tokens == logical else None

    def boundary_at_or_after(self, logical: int) -> PromptBoundary | None:
        """The first legal boundary at or after an index: inside a media span, its end. None outside the prompt."""
        if logical == self.end.logical_tokens:
            return self.end
        if not 0 <= logical < self.end.logical_tokens:
            return None
        index = self._index_at(logical)
        start = self._starts[index]
        inside = logical - start.logical_tokens
        segment = self.segments[index]
        return start.behind([segment]) if segment.is_media and inside else start.advance(inside)

    def boundary_at_or_before(self, logical: int) -> PromptBoundary | None:
        """The last legal boundary at or before an index: inside a media span, its start. None outside the prompt."""
        boundary = self.boundary_at(logical)
        if boundary is not None or not 0 <= logical <= self.end.logical_tokens:
            return boundary
        return self._starts[self._index_at(logical)]

    def text_tokens_at(self, logical: int) -> Tokens:
        """Text token ids from a logical index to the end of its text run; empty at media and at the end."""
        if not 0 <= logical < self.end.logical_tokens:
            return np.empty(0, np.int32)
        index = self._index_at(logical)
        return self.segments[index].tokens[logical - self._logical_starts[index] :]

    def media_at(self, logical: int) -> PromptSegment | None:
        """The media span that starts exactly at a logical index, or None."""
        if not 0 <= logical < self.end.logical_tokens:
            return None
        index = self._index_at(logical)
        segment = self.segments[index]
        return segment if segment.is_media and self._logical_starts[index] == logical else None

    def media_at_or_after(self, logical: int) -> PromptSegment | None:
        """The first media span that starts at a logical index or behind it, or None."""
        first = bisect_left(self._logical_starts, logical)
        return next((segment for segment in self.segments[first:] if segment.is_media), None)

    def common_prefix(self, other: PromptLayout) -> PromptBoundary:
        """The longest shared boundary: text token by token, a media span whole or not at all."""
        shared = PromptBoundary.START
        for mine, theirs in zip(self.segments, other.segments, strict=False):
            if mine.media_span != theirs.media_span:
                return shared
            if mine.media_span is not None:
                shared = shared.behind([mine])
                continue
            length = shared_length(mine.tokens, theirs.tokens)
            shared = shared.advance(length)
            if length < mine.logical_tokens or length < theirs.logical_tokens:
                return shared
        return shared

    def prefix(self, boundary: PromptBoundary) -> PromptLayout:
        """The layout before a boundary. Raises ValueError where `boundary` is not one of this layout's."""
        if self.boundary_at(boundary.logical_tokens) != boundary:
            raise ValueError(f"{boundary} is no boundary of {self!r}")
        return PromptLayout(_sliced(self.segments, 0, boundary.logical_tokens))

    def slice_segments(self, start: int, stop: int) -> list[PromptSegment]:
        """The segments between two logical indexes, both of which must be legal boundaries."""
        return _sliced(self.segments, start, stop)

    def extended(self, segments: Iterable[PromptSegment]) -> PromptLayout:
        """This layout with more segments after it."""
        return PromptLayout([*self.segments, *segments])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PromptLayout):
            return NotImplemented
        return self.segments == other.segments

    def __hash__(self) -> int:
        return hash(self.segments)

    def __repr__(self) -> str:
        inner = " | ".join(map(repr, self.segments))
        return f"PromptLayout({self.end.logical_tokens} tokens, {self.end.native_position} positions: {inner})"


def _joined(runs: Sequence[Tokens]) -> Tokens:
    if len(runs) == 1:
        return runs[0]
    joined = np.concatenate(runs) if runs else np.empty(0, np.int32)
    joined.flags.writeable = False
    return joined


def _normalised(segments: Iterable[PromptSegment]) -> Iterable[PromptSegment]:
    run: list[Tokens] = []
    for segment in segments:
        if not segment.is_media:
            if segment.logical_tokens:
                run.append(segment.tokens)
            continue
        if run:
            yield PromptSegment(_joined(run), None)
            run = []
        yield segment
    if run:
        yield PromptSegment(_joined(run), None)


def _sliced(segments: Sequence[PromptSegment], start: int, stop: int) -> list[PromptSegment]:
    result: list[PromptSegment] = []
    offset = 0
    for segment in segments:
        low, high = max(start - offset, 0), min(stop - offset, segment.logical_tokens)
        offset += segment.logical_tokens
        if low >= high:
            continue
        if segment.is_media:
            if (low, high) != (0, segment.logical_tokens):
                raise ValueError(f"cut inside {segment!r}")
            result.append(segment)
        else:
            result.append(PromptSegment(segment.tokens[low:high], None))
    return result
