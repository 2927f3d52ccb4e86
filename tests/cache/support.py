"""Segments to store: random ones, and rows of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from forerun.cache.file_format import encode_head
from forerun.core.prefix import PromptCheckpointState
from forerun.core.prompt import PromptBoundary, PromptSegment
from forerun.core.segment import SegmentHeader, StoreEvent, StoreEventKind, segment_key

MODEL_KEY = "0123456789abcdef" * 2
OTHER_MODEL = "fedcba9876543210" * 2


def header_of(
    content: Iterable[PromptSegment],
    start: PromptBoundary = PromptBoundary.START,
    *,
    parent: str = "",
    scope: str = "",
    draft_tokens: int = 0,
    whole_from: int = 0,
    model_key: str = MODEL_KEY,
) -> SegmentHeader:
    """A header with its right key, of which the draft has the first `draft_tokens`."""
    content = tuple(content)
    return SegmentHeader(
        key=segment_key(model_key, scope, parent, start, content),
        parent=parent,
        scope=scope,
        start=start,
        stop=start.behind(content),
        content=content,
        draft_stop=start.text_tokens + draft_tokens,
        whole_from=whole_from,
    )


def text_header(tokens: Sequence[int], parent: SegmentHeader | None = None, *, draft_tokens: int = 0) -> SegmentHeader:
    """A run of text, from the start of a prompt or from a parent's end."""
    content = [PromptSegment.text(tokens)]
    if parent is None:
        return header_of(content, draft_tokens=draft_tokens)
    return header_of(content, parent.stop, parent=parent.key, draft_tokens=draft_tokens)


def payload_of(header: SegmentHeader, size: int) -> bytes:
    """Bytes that follow from a segment's key: what is read can be told right from wrong."""
    return random.Random(header.key).randbytes(size)


def state_of(header: SegmentHeader, size: int = 1000) -> PromptCheckpointState:
    return PromptCheckpointState.target(payload_of(header, size))


def file_of(header: SegmentHeader, state: PromptCheckpointState, model_key: str = MODEL_KEY) -> bytes:
    """A segment's file."""
    head = encode_head(model_key, header, state)
    return head.encoded + state.state + head.payload_digest(state.state)


def events(kind: StoreEventKind, *keys: str) -> set[tuple[StoreEventKind, str]]:
    return {(kind, key) for key in keys}


def names(found: Iterable[StoreEvent]) -> set[tuple[StoreEventKind, str]]:
    return {(event.kind, event.key) for event in found}
