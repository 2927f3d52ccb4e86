"""Encodes media spans beside the steps, one at a time on a thread of its own, and remembers what came out.

engine thread   EncodeMedia, ForgetMedia ──►  asked   [ encoding thread ]  cache ─ or ─ item, chunk, projector
                MediaRows                ◄──  ready  ◄─┘
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

import numpy as np

from forerun.core.encoding import (
    EmbeddingStore,
    EncodeMedia,
    ForgetMedia,
    MediaEvent,
    MediaOperation,
)
from forerun.core.prompt import MediaItem, MediaSpan
from forerun.core.step import FailureKind
from forerun.errors import ForerunError, InvalidRequestError
from forerun.media.item import Media
from forerun.native.context import NativeStepError
from forerun.native.encoded import Embeddings, Encoded
from forerun.native.projector import MediaChunk, Projector

_log = logging.getLogger("forerun.native")
_SMALLEST: Final = 1e-20
"""Of a row's largest number. llama.cpp's models make no number of a row of zeros."""
_NICE: Final = 5
"""Decodes, which others read along, go before encoding where both want the same cores."""


class ChunkSource(Protocol):
    """Who prepares spans: native/media_reader.py."""

    def prepared(self, identity: str) -> MediaChunk | None: ...

    def chunk(self, identity: str, item: Media) -> MediaChunk: ...


class MediaEncoder:
    """Owns the encoding thread, and what is ready. All methods are the engine thread's.

    `fetch` gets an item that did not come with its request, by digest; None where nobody has it any more. It may take a
    while, and is called on the encoding thread. `store` is used by that thread alone.
    """

    def __init__(
        self,
        projector: Projector,
        chunks: ChunkSource,
        store: EmbeddingStore,
        fetch: Callable[[str], MediaItem | None] = lambda _: None,
    ) -> None:
        self._projector = projector
        self._chunks = chunks
        self._store = store
        self._fetch = fetch
        self.encoded = 0
        """Spans encoded so far; those that were remembered are not counted."""
        self._changed = threading.Condition()
        self._asked: dict[MediaSpan, EncodeMedia] = {}
        """In order; the first one is being encoded."""
        self._ready: dict[MediaSpan, Encoded] = {}
        self._events: list[MediaEvent] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="forerun-encode", daemon=True)
        self._thread.start()

    def perform(self, operations: Iterable[MediaOperation]) -> None:
        """Begin to encode, and forget."""
        with self._changed:
            for operation in operations:
                match operation:
                    case EncodeMedia(span):
                        self._asked[span] = operation
                    case ForgetMedia(span):
                        self._asked.pop(span, None)
                        self._ready.pop(span, None)
                        # What became of it then says nothing of it where it is asked for again.
                        self._events = [event for event in self._events if event.span != span]
            self._changed.notify_all()

    def encoded_span(self, span: MediaSpan | None) -> Encoded:
        """What is ready. Raises NativeStepError."""
        with self._changed:
            found = self._ready.get(span) if span is not None else None
        if found is None:
            raise NativeStepError(FailureKind.FAILED, f"{span} is not encoded")
        return found

    def take_events(self) -> tuple[MediaEvent, ...]:
        """What was finished since the last call."""
        with self._changed:
            events, self._events = tuple(self._events), []
        return events

    def wait(self, seconds: float) -> None:
        """Return once an event is there, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._events, seconds)

    def close(self) -> None:
        """Wait until what is being encoded has ended; nothing more is. Safe to call again."""
        with self._changed:
            self._is_closing = True
            self._asked.clear()
            self._changed.notify_all()
        self._thread.join()

    # --- the encoding thread ---

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere it would be a process's; threads that compute for this one inherit it
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (wanted := self._next()) is not None:
            error, encoded = "", None
            try:
                encoded = self._encode(wanted)
            except ForerunError as failed:
                error = failed.reason if isinstance(failed, InvalidRequestError) else str(failed)
            except Exception as failed:  # noqa: BLE001 (whatever it is, it is this request's end alone)
                _log.exception("media could not be encoded")
                error = f"{type(failed).__name__}: {failed}"
            self._finish(wanted, encoded, error)

    def _next(self) -> EncodeMedia | None:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._is_closing)
            return None if self._is_closing else next(iter(self._asked.values()))

    def _finish(self, wanted: EncodeMedia, encoded: Encoded | None, error: str) -> None:
        with self._changed:
            if self._asked.get(wanted.span) is not wanted:  # nobody waits for it any more
                return
            del self._asked[wanted.span]
            if encoded is not None:
                self._ready[wanted.span] = encoded
            self._events.append(MediaEvent(wanted.span, error))
            self._changed.notify_all()

    def _encode(self, wanted: EncodeMedia) -> Encoded:
        """What is remembered, or else encoded now. Raises ForerunError."""
        identity = wanted.span.identity
        remembered = self._store.get(identity)
        if remembered is not None:
            return Encoded.from_bytes(remembered)
        chunk = self._chunks.prepared(identity) or self._prepare(wanted)
        encoded = Encoded(self._projector.encode(chunk), chunk.geometry, chunk.is_causal)
        _check(encoded.embeddings)
        self.encoded += 1
        self._store.put(identity, encoded.to_bytes())
        return encoded

    def _prepare(self, wanted: EncodeMedia) -> MediaChunk:
        identity = wanted.span.identity
        item = wanted.item or self._fetch(identity.split(":")[1])
        if not isinstance(item, Media):
            raise InvalidRequestError("", "its content is gone: send it again")
        return self._chunks.chunk(identity, item)

    def __repr__(self) -> str:
        with self._changed:
            return f"MediaEncoder({self.encoded} encoded, {len(self._asked)} asked for, {len(self._ready)} ready)"


def _check(embeddings: Embeddings) -> None:
    """Raise InvalidRequestError for rows that would become NaN in the model's memory.

    Those spoil every other sequence's answers, even once they are cleared: rows of attention add up the whole memory,
    with weights of zero for what is not theirs, and zero times NaN is NaN.
    """
    largest = np.abs(embeddings).max(axis=1)
    if not (np.isfinite(largest) & (largest > _SMALLEST)).all():
        raise InvalidRequestError("", "the projector makes no numbers of it: send it in another form")
