"""One HTTP request over a connection of its own, and when each piece of its answer came.

    socket ── bytes ──► httptools ── pieces of the body, with the time ──► Reply ── after the end ──► reading.py

As little as possible happens while a server answers, since on a small machine the client takes its time from the
server: pieces are kept as they came, and read once the answer has ended. Times are those of the event loop, in seconds.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from forerun.errors import BenchmarkError

_PORTS: Final = {"http": 80, "https": 443}
_EVENT_END: Final = b"\n\n"
_EVENT_END_CRLF: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `path` comes before every route, without a slash at its end."""

    host: str
    port: int
    path: str = ""
    is_tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        """Of `http://host:port/path`; a `/v1` at its end is left out, since routes begin with it.

        Raises BenchmarkError.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BenchmarkError(f"--url: {url!r} is no address: {error}") from error
        if parts.scheme not in _PORTS or not parts.hostname:
            raise BenchmarkError(f"--url: must be like http://127.0.0.1:8080, got {url!r}")
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or _PORTS[parts.scheme], path, parts.scheme == "https")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}{self.path}"


@dataclass(slots=True)
class Reply:
    """What has come of an answer so far. Owned by its connection, read by whoever asked."""

    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    """Of the body, each with the time it came."""
    ended: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


class Connection(asyncio.Protocol):
    """A request that is being answered."""

    def __init__(self, head_and_body: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._sent = head_and_body
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._events = 0
        self._waiting: tuple[int, asyncio.Future[None]] | None = None
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.reply = Reply()
        self.began = 0.0

    async def ended(self) -> Reply:
        """The whole answer. Raises BenchmarkError where it was cut."""
        await self._done
        return self.reply

    async def reached(self, events: int) -> None:
        """Until so many events of a stream have come, or it has ended."""
        if self._events >= events or self._done.done():
            return
        self._waiting = (events, self._loop.create_future())
        await self._waiting[1]

    def leave(self) -> None:
        """Close the connection as a client that loses interest does; what has come stays."""
        if self._transport is not None:
            self._transport.abort()
        self._end(None)

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.began = self._loop.time()
        self._transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        self._now = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(BenchmarkError(f"the server's answer is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        # Without a length or chunks an answer ends with its connection.
        cut = exc is not None or self.reply.status == 0
        reason = f": {exc}" if exc is not None else " before it answered"
        self._end(BenchmarkError(f"the server closed the connection{reason}") if cut else None)

    # --- what the parser calls ---

    def on_headers_complete(self) -> None:
        self.reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.reply.pieces.append((self._now, body))
        self._events += body.count(_EVENT_END) + body.count(_EVENT_END_CRLF)
        if self._waiting is not None and self._events >= self._waiting[0]:
            self._wake()

    def on_message_complete(self) -> None:
        self._end(None)
        if self._transport is not None:
            self._transport.close()

    def _end(self, error: BenchmarkError | None) -> None:
        if self._done.done():
            return
        self.reply.ended = self._now or self._loop.time()
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(None)


async def send(address: Address, method: str, route: str, body: bytes = b"", key: str | None = None) -> Connection:
    """Ask for something on a new connection. Raises BenchmarkError where nobody listens."""
    lines = [f"{method} {address.path}{route} HTTP/1.1", f"Host: {address.host}:{address.port}", "Connection: close"]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    request = "\r\n".join([*lines, "", ""]).encode() + body
    tls = ssl.create_default_context() if address.is_tls else None
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(request), address.host, address.port, ssl=tls
        )
    except OSError as error:
        raise BenchmarkError(f"{address} cannot be reached: {error.strerror or error}") from error
    return connection
