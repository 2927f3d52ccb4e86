"""Media between a front end and an engine process: measured there once, and sent there only when they must be encoded.

front end   RemoteMediaReader ── Measure(item) ──► process        how many tokens and positions; once a digest
            open requests     ◄── WantMedia(digest) ──            nothing remembers it: neither KV nor embeddings
                              ── GiveMedia(digest, item) ──►
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from forerun.core.prompt import PromptSegment
from forerun.engine.loop import EngineLoop
from forerun.engine.worker import Worker
from forerun.errors import EngineError
from forerun.media.item import Media
from forerun.media.kind import MediaKind

_KNOWN: Final = 4096
_PATIENCE: Final = 30.0
"""Seconds that an item may take from the front end."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A question: how the model reads an item. The process answers it beside the engine thread."""

    item: Media

    def answer(self, loop: EngineLoop) -> tuple[PromptSegment, ...]:  # noqa: ARG002 (questions are given it)
        """Raises EngineError: the engine thread does not know."""
        raise EngineError("an item is measured by the projector, not by the engine")


class RemoteMediaReader:
    """Implements parts.MediaReader with the projector of an engine process. Any thread."""

    def __init__(self, worker: Worker, kinds: frozenset[MediaKind]) -> None:
        self.kinds = kinds
        self._worker = worker
        self._lock = threading.Lock()
        self._segments: OrderedDict[str, Sequence[PromptSegment]] = OrderedDict()

    def segments(self, item: Media) -> Sequence[PromptSegment]:
        with self._lock:
            known = self._segments.get(item.digest)
            if known is not None:
                self._segments.move_to_end(item.digest)
                return known
        segments = self._worker.ask(Measure(item)).result()
        with self._lock:
            self._segments[item.digest] = segments
            while len(self._segments) > _KNOWN:
                self._segments.popitem(last=False)
        return segments

    def __repr__(self) -> str:
        return f"RemoteMediaReader({len(self._segments)} items known)"


class MediaMail:
    """The process's side: asks the front end for items. Without one (an engine on a thread) nobody has them.

    `fetch` is the encoding thread's, all else the thread's that reads commands.
    """

    def __init__(self) -> None:
        self._send: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._awaited: dict[str, Future[Media | None]] = {}

    def connect(self, send: Callable[[str], None]) -> None:
        """From now on `send` is told which digests are wanted."""
        with self._lock:
            self._send = send

    def fetch(self, digest: str) -> Media | None:
        """The item of a digest; None where the front end does not have it, or does not answer."""
        with self._lock:
            send = self._send
            if send is None:
                return None
            awaited = self._awaited.setdefault(digest, Future())
        send(digest)
        try:
            return awaited.result(_PATIENCE)
        except TimeoutError:
            return None

    def deliver(self, digest: str, item: Media | None) -> None:
        """What the front end answered."""
        with self._lock:
            awaited = self._awaited.pop(digest, None)
        if awaited is not None:
            awaited.set_result(item)

    def close(self) -> None:
        """Nothing is delivered any more."""
        with self._lock:
            self._send = None
            digests = list(self._awaited)
        for digest in digests:
            self.deliver(digest, None)
