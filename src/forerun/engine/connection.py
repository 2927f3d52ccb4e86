"""Messages over a stream socket."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from forerun.engine.messages import LENGTH, MAX_MESSAGE
from forerun.errors import EngineError

_CHUNK: Final = 2**18
_T = TypeVar("_T")


class Connection(Generic[_T]):
    """Messages over a stream socket. One thread receives, any may send."""

    def __init__(self, stream: socket.socket, decoder: msgspec.msgpack.Decoder[_T]) -> None:
        self._stream = stream
        self._decoder = decoder
        self._received = bytearray()
        self._sending = threading.Lock()
        self._poll = select.poll()  # select.select takes no descriptor above 1023
        self._poll.register(stream, select.POLLIN)

    def send(self, data: bytes) -> None:
        """Send what `encode` made; waits while the other side does not read. Raises OSError where it is gone."""
        with self._sending:
            self._stream.sendall(data)

    def receive(self, timeout: float | None = None) -> _T | None:
        """The next message; None where the other side is gone, whatever it left unfinished.

        Raises TimeoutError where none is whole after `timeout` seconds without a byte.
        """
        while (body := self._take()) is None:
            if timeout is not None and not self._poll.poll(timeout * 1e3):
                raise TimeoutError
            try:
                chunk = self._stream.recv(_CHUNK)
            except OSError:
                return None
            if not chunk:
                return None
            self._received += chunk
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise EngineError(f"a message between front end and engine cannot be read: {error}") from error

    def _take(self) -> bytes | None:
        if len(self._received) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._received)
        if size > MAX_MESSAGE:
            raise EngineError(f"a message between front end and engine claims {size} bytes, at most {MAX_MESSAGE} are")
        end = LENGTH.size + size
        if len(self._received) < end:
            return None
        body = bytes(self._received[LENGTH.size : end])
        del self._received[:end]
        return body

    def shut(self) -> None:
        """End it for both sides; a thread that waits in it is woken. Safe to call again."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def stop_receiving(self) -> None:
        """Whoever waits for a message is told that none comes; others can still be sent."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Free the descriptor. Nobody may be waiting in it."""
        self._stream.close()
