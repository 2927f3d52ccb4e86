"""Server-sent events: a response that begins at once, keeps quiet streams open, and notices who leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
_encoder: Final = msgspec.json.Encoder()

WireEvent: TypeAlias = dict[str, Any]
"""What an event with a name tells; the name is its `type`."""


def data_event(value: Any) -> bytes:
    """One event of OpenAI's streams. `value`: plain values, msgspec structs or dataclasses."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def named_event(value: WireEvent) -> bytes:
    """One event with a name, as Anthropic's streams and OpenAI's responses have them."""
    name: str = value["type"]
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(value) + b"\n\n"


class EventStream(Response):
    """Sends `frames`, each one or several whole events. They raise nothing: errors are events, too.

    `close` is called when all is sent, when the client has left and when the server stops, also before the first frame.
    The connection ends with the stream, so that its end is seen whatever stands in between.
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes], *, close: Callable[[], Awaitable[None]], keep_alive: float
    ) -> None:
        """`keep_alive`: seconds of silence after which a comment is sent."""
        self._frames = frames
        self._close = close
        self._keep_alive = keep_alive
        self._sent_at = 0.0
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", "connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        sending = asyncio.create_task(self._send_all(send))
        beside = [asyncio.create_task(self._keep_open(send)), asyncio.create_task(_left(receive))]
        try:
            await asyncio.wait([sending, beside[1]], return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [sending, *beside]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _send_all(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sent_at = loop.time()
        # An empty piece makes servers send the headers now, not with the first event.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                self._sent_at = loop.time()
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_open(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        while True:
            quiet = loop.time() - self._sent_at
            if quiet >= self._keep_alive:
                self._sent_at = loop.time()
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
            await asyncio.sleep(max(self._keep_alive - (loop.time() - self._sent_at), 0.001))


async def _left(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
