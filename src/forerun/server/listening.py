"""The socket side: uvicorn with bounded headers, a start that can be watched, and an end within a stated time."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from forerun.server.binding import BACKLOG
from forerun.server.request_log import RequestLog
from forerun.server.serving import Backend
from forerun.server.settings import LogFormat

_HEADERS_WITHIN: Final = 30.0
"""Seconds that a client may take to send a request's headers."""
_AFTER_CUT: Final = 2.0
"""Seconds for the last events of streams that are cut."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 on one connection. Closes it where headers are too long or take too long: uvicorn alone would go on."""

    max_header_bytes = 32 * 2**10

    @staticmethod
    def refused(status: int, error: str) -> None:
        """Is told of what never became a request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unfinished = 0
        """Bytes that came since headers were last complete."""
        self._reads_headers = True
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._patience = self.loop.call_later(_HEADERS_WITHIN, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reads_headers:
            self._unfinished += len(data)
        super().data_received(data)
        if self._reads_headers and self._unfinished > self.max_header_bytes and not self.transport.is_closing():
            self.refused(431, "headers_too_large")
            self._refuse()

    def on_message_begin(self) -> None:
        self._reads_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reads_headers = False
        self._calm()
        super().on_headers_complete()  # raises for addresses it cannot take apart
        self._unfinished = 0

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP never becomes a request: it is told here, in the words of the requests."""
        is_too_long = self._unfinished > self.max_header_bytes
        self.refused(431 if is_too_long else 400, "headers_too_large" if is_too_long else "invalid_http")
        if is_too_long:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if self._reads_headers and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self) -> None:
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.transport.close()


def _teller(form: LogFormat) -> Callable[[int, str], None]:
    """What tells the log of requests that are none."""
    if form is LogFormat.OFF:
        return lambda _status, _error: None
    return RequestLog(form).unread


class HttpServer(uvicorn.Server):
    """Serves until it is told to stop (SIGTERM, SIGINT, `should_exit`).

    Then no more connections are taken, what is open may finish for `shutdown_timeout` seconds, and what is still open
    after that, or at the next SIGINT, is cut: streams end with an error event.
    """

    def __init__(
        self,
        app: FastAPI,
        backend: Backend,
        *,
        started: Callable[[str], None] = lambda _: None,
        stopping: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`started` is told the address once connections are taken, `stopping` how many answers are still open."""
        settings = backend.settings
        own = {"max_header_bytes": settings.max_header_bytes, "refused": staticmethod(_teller(settings.log_format))}
        protocol = type("Protocol", (BoundedProtocol,), own)
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # its warnings tell of clients that send what is no HTTP: RequestLog does
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=int(settings.shutdown_timeout + _AFTER_CUT) + 1,
        )
        super().__init__(config)
        self._backend = backend
        self._started = started
        self._stopping = stopping

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end `serve`, and nothing else: uvicorn raises them again afterwards, before engines are closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def told(number: int, _frame: FrameType | None) -> None:
            if self.should_exit and number == signal.SIGINT:
                loop.call_soon_threadsafe(self._cut)
            self.should_exit = True

        before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._started(self.address)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._backend.stop()
        self._stopping(self._backend.open_answers)
        cut = asyncio.get_running_loop().call_later(self._backend.settings.shutdown_timeout, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _cut(self) -> None:
        """End open answers now, and a moment later the connections of clients that do not read how they end."""
        self._backend.stop()
        self._backend.cut_off()
        asyncio.get_running_loop().call_later(_AFTER_CUT, self._abandon)

    def _abandon(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
