"""Pictures decoded where it can do no harm: in time, and in processes that may run out of memory.

decode ──► a child reads the dimensions, and the pixels where they are not too many ──► Picture
            │ dies, or overruns: the picture is refused, and the next one gets another child
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
from forerun.media.limits import MediaLimits
from forerun.media.picture import Picture

SCRIPT: Final = Path(__file__).with_name("decoding_child.py")
"""Started as a file: as a module it would load all of Forerun first."""
PROCESSES: Final = 2
_PATIENCE: Final = 10.0
"""Seconds that a picture waits for a child to be free."""
_LENGTH_BYTES: Final = 8
_CHANNELS: Final = 3


class PictureDecoder:
    """Any thread. Owns up to `processes` children, each started when it is first needed; `close` ends them."""

    def __init__(self, limits: MediaLimits, *, processes: int = PROCESSES) -> None:
        self._limits = limits
        self._free: LifoQueue[_Child | None] = LifoQueue()
        """Those that wait for a picture, and a None for each that may be started."""
        self._alive: set[_Child] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        for _ in range(processes):
            self._free.put(None)

    def decode(self, data: bytes, field: str) -> Picture:
        """Waits until it is decoded. Raises InvalidRequestError naming `field`, OverloadedError."""
        if not data:
            raise InvalidRequestError(field, "is empty: it has no bytes")
        try:
            child = self._free.get(timeout=_PATIENCE)
        except Empty:
            raise OverloadedError("no process is free to decode the picture; try again later", _PATIENCE) from None
        try:
            if child is None:
                child = self._started()
            return self._decoded(child, data, field)
        finally:
            self._give_back(child)

    def close(self) -> None:
        """End the children. Pictures that are being decoded are refused."""
        with self._lock:
            self._is_closed = True
            alive = list(self._alive)
        for child in alive:
            child.end()

    def _decoded(self, child: _Child, data: bytes, field: str) -> Picture:
        seconds = self._limits.decode_seconds
        try:
            answer = child.ask(data, seconds)
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
        return f"PictureDecoder({len(self._alive)} processes)"


class _Child(ChildProcess):
    """One decoding process."""

    def __init__(self, limits: MediaLimits) -> None:
        arguments = [str(limits.max_image_pixels), str(limits.max_aspect)]
        super().__init__([sys.executable, "-P", os.fspath(SCRIPT), *arguments])

    def ask(self, data: bytes, seconds: float) -> Picture | str:
        """The picture, or what is wrong with it. Raises TimeoutError or EOFError, and the process has ended then."""
        with self.within(seconds):
            self.send(len(data).to_bytes(_LENGTH_BYTES, "big"), data)
            answer = json.loads(self.read_line())
            if isinstance(answer, str):
                return answer
            width, height = answer
            return Picture.of(width, height, self.read(width * height * _CHANNELS))
