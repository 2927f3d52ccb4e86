"""A client that reads slowly: its request is paused, and all others are served."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import Message

from forerun.testing.served import served_parts
from tests.server.support import HELLO_BODY, served

TOKENS = 1500
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
"""Answers that are drawn have a control token now and then, which has no text."""


class SlowClient:
    """An ASGI client that takes some messages and then none until it is let."""

    def __init__(self, body: dict[str, Any], most: int) -> None:
        self._body = json.dumps(body).encode()
        self._most = most
        self._is_asked = False
        self.reads_on = asyncio.Event()
        self.received: list[Message] = []

    async def receive(self) -> Message:
        if self._is_asked:
            await asyncio.Event().wait()
        self._is_asked = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        if len(self.received) >= self._most:
            await self.reads_on.wait()
        self.received.append(message)


def scope() -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    where = {"path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": ""}
    who = {"client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http", "http_version": "1.1"}
    return {"type": "http", "asgi": {"version": "3.0"}, "method": "POST", "headers": headers, **where, **who}


def test_a_stream_that_its_client_does_not_read_is_paused_and_goes_on_when_it_is_read() -> None:
    async def main() -> None:
        async with served(served_parts(max_num_seqs=1)) as server:
            slow = SlowClient({**HELLO_BODY, **GREEDY, "stream": True, "max_tokens": TOKENS}, most=10)
            streaming = asyncio.create_task(server.app(scope(), slow.receive, slow.send))
            while (await server.engine.stats()).paused == 0:
                await asyncio.sleep(0)
            assert (await server.chat()).status_code == 200, "though there is one seat, and the slow one had it"
            slow.reads_on.set()
            await streaming
            text = b"".join(message.get("body", b"") for message in slow.received).decode()
            assert text.endswith("data: [DONE]\n\n")
            events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
            said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
            assert len(said) == TOKENS
            await server.assert_idle()

    asyncio.run(main())
