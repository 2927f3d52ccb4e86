"""Media decoded where it can do no harm: in time, and in processes that may run out of memory.

decode ──► a child reads how large it is, and what is in it where that is not too much ──► Picture, Sound
            │ dies, or overruns: the item is refused, and the next one gets another child
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Final

from forerun.child_process import ChildProcess
from forerun.errors import InvalidRequestError, OverloadedError
from forerun.media.item import Media
from forerun.media.kind import MediaKind
from forerun.media.limits import MediaLimits
from forerun.media.picture import Picture
from forerun.media.sound import MIN_SECONDS, RATES, Sound

SCRIPT: Final = Path(__file__).with_name("decoding_child.py")
"""Started as a file: as a module it would load all of Forerun first."""
PROCESSES: Final = 2
_PATIENCE: Final = 10.0
"""Seconds that an item waits for a child to be free."""
_LENGTH_BYTES: Final = 8
_KINDS: Final = {MediaKind.IMAGE: b"p", MediaKind.AUDIO: b"s"}
_CHANNELS: Final = 3
_SAMPLE_BYTES: Final = 2


class MediaDecoder:
    """Any thread. Owns up to `processes` children, each started when it is first needed; `close` ends them."""

    def __init__(self, limits: MediaLimits, *, processes: int = PROCESSES) -> None:
        self._limits = limits
        self._free: LifoQueue[_Child | None] = LifoQueue()
        """Those that wait for an item, and a None for each that may be started."""
        self._alive: set[_Child] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        for _ in range(processes):
            self._free.put(None)

    def picture(self, data: bytes, field: str) -> Picture:
        """Waits until it is decoded. Raises InvalidRequestError naming `field`, OverloadedError."""
        found = self.decode(MediaKind.IMAGE, data, field)
        assert isinstance(found, Picture)
        return found

    def sound(self, data: bytes, field: str) -> Sound:
        """Like `picture`."""
        found = self.decode(MediaKind.AUDIO, data, field)
        assert isinstance(found, Sound)
        return found

    def decode(self, kind: MediaKind, data: bytes, field: str) -> Media:
        """A file as what it is said to be. Waits; raises like `picture`."""
        if not data:
            raise InvalidRequestError(field, "is empty: it has no bytes")
        try:
            child = self._free.get(timeout=_PATIENCE)
        except Empty:
            raise OverloadedError("no process is free to decode media; try again later", _PATIENCE) from None
        try:
            if child is None:
                child = self._started()
            return self._decoded(child, kind, data, field)
        finally:
            self._give_back(child)

    def close(self) -> None:
        """End the children. What is being decoded is refused."""
        with self._lock:
            self._is_closed = True
            alive = list(self._alive)
        for child in alive:
            child.end()

    def _decoded(self, child: _Child, kind: MediaKind, data: bytes, field: str) -> Media:
        seconds = self._limits.decode_seconds
        try:
            answer = child.ask(kind, data, seconds)
        except TimeoutError:
            raise InvalidRequestError(field, f"takes longer than {seconds:g} s to decode; send it smaller") from None
        except EOFError:
            raise InvalidRequestError(
                field, "exhausts the decoder, which died of it; send it in another form"
            ) from None
        if isinstance(answer, str):
            raise InvalidRequestError(field, answer)
        return answer

    def _started(self) -> _Child:
        child = _Child(self._limits)
        with self._lock:
            self._alive.add(child)
            is_closed = self._is_closed
        if is_closed:
            child.end()
        return child

    def _give_back(self, child: _Child | None) -> None:
        if child is not None and not child.is_alive:
            with self._lock:
                self._alive.discard(child)
            child = None
        self._free.put(child)

    def __repr__(self) -> str:
        return f"MediaDecoder({len(self._alive)} processes)"


class _Child(ChildProcess):
    """One decoding process."""

    def __init__(self, limits: MediaLimits) -> None:
        told = {
            "max_pixels": limits.max_image_pixels,
            "max_aspect": limits.max_aspect,
            "min_seconds": MIN_SECONDS,
            "max_seconds": limits.max_audio_seconds,
            "min_rate": RATES.start,
            "max_rate": RATES.stop - 1,
        }
        super().__init__([sys.executable, "-P", os.fspath(SCRIPT), json.dumps(told)])

    def ask(self, kind: MediaKind, data: bytes, seconds: float) -> Media | str:
        """The item, or what is wrong with it. Raises TimeoutError or EOFError, and the process has ended then."""
        with self.within(seconds):
            self.send(_KINDS[kind] + len(data).to_bytes(_LENGTH_BYTES, "big"), data)
            answer = json.loads(self.read_line())
            if isinstance(answer, str):
                return answer
            first, second = answer
            if kind is MediaKind.IMAGE:
                return Picture.of(first, second, self.read(first * second * _CHANNELS))
            return Sound.of(first, self.read(second * _SAMPLE_BYTES))
