"""What a model is shown of an item of media, for whoever builds prompts; and its chunks, for whoever encodes them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from forerun.core.prompt import PromptSegment
from forerun.errors import InvalidRequestError
from forerun.media.item import Media
from forerun.media.kind import MediaKind
from forerun.native.projector import MediaChunk, Projector

_CHUNKS_KEPT: Final = 8
_TOKENS_KEPT: Final = 8192
"""Preprocessed spans, between the reading of a prompt and its encoding: about 10 KB a token. One item's are always."""
_KNOWN: Final = 4096
"""Items whose segments are remembered, a few hundred bytes each."""


class LlamaMediaReader:
    """Implements engine.parts.MediaReader on a projector. Any thread.

    `most_tokens`: of one span at most; `most_together`: of one that is evaluated as one.
    """

    def __init__(self, projector: Projector, *, most_tokens: int, most_together: int) -> None:
        self._projector = projector
        self._most_tokens = most_tokens
        self._most_together = most_together
        self._lock = threading.Lock()
        self._chunks: OrderedDict[str, MediaChunk] = OrderedDict()
        self._segments: OrderedDict[str, tuple[PromptSegment, ...]] = OrderedDict()

    @property
    def kinds(self) -> frozenset[MediaKind]:
        reads = {MediaKind.IMAGE: self._projector.has_vision, MediaKind.AUDIO: self._projector.has_audio}
        return frozenset(kind for kind, is_read in reads.items() if is_read)

    def segments(self, item: Media) -> Sequence[PromptSegment]:
        """The item as the model reads it. Raises InvalidRequestError where it has too many tokens."""
        with self._lock:
            known = self._segments.get(item.digest)
            if known is not None:
                self._segments.move_to_end(item.digest)
                return known
        segments = self._place(item)
        with self._lock:
            self._segments[item.digest] = segments
            while len(self._segments) > _KNOWN:
                self._segments.popitem(last=False)
        return segments

    def prepared(self, identity: str) -> MediaChunk | None:
        """A span that was preprocessed a moment ago, given away."""
        with self._lock:
            return self._chunks.pop(identity, None)

    def chunk(self, identity: str, item: Media) -> MediaChunk:
        """The span of that identity, a span of the item, preprocessed. Raises InvalidRequestError."""
        self._place(item)
        chunk = self.prepared(identity)
        if chunk is None:
            raise InvalidRequestError("", f"{identity} is no span of {item!r}")
        return chunk

    def _place(self, item: Media) -> tuple[PromptSegment, ...]:
        segments: list[PromptSegment] = []
        chunks: dict[str, MediaChunk] = {}
        for part in self._projector.place(item):
            if not isinstance(part, MediaChunk):
                segments.append(PromptSegment.text(part))
                continue
            self._check(part)
            identity = f"{self._projector.identity}:{item.digest}:{len(chunks)}"
            chunks[identity] = part
            segments.append(PromptSegment.media(identity, part.tokens, part.positions))
        with self._lock:
            for identity, chunk in chunks.items():
                self._chunks[identity] = chunk
                self._chunks.move_to_end(identity)
            while len(self._chunks) > len(chunks) and self._has_too_many():
                self._chunks.popitem(last=False)
        return tuple(segments)

    def _has_too_many(self) -> bool:
        return len(self._chunks) > _CHUNKS_KEPT or sum(one.tokens for one in self._chunks.values()) > _TOKENS_KEPT

    def _check(self, chunk: MediaChunk) -> None:
        if chunk.tokens > self._most_tokens:
            raise InvalidRequestError(
                "", f"has {chunk.tokens} tokens, but the context holds {self._most_tokens}: send less of it"
            )
        if not chunk.is_causal and chunk.tokens > self._most_together:
            raise InvalidRequestError(
                "",
                f"has {chunk.tokens} tokens that this model reads as one, but a step computes {self._most_together} "
                "(n_ubatch, max_num_batched_tokens): send a smaller one, or raise them",
            )

    def __repr__(self) -> str:
        return f"LlamaMediaReader({self._projector!r}, {len(self._segments)} items known)"
