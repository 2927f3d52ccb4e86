"""Asks a server on this machine for one stream, with as little of a client as possible."""

from __future__ import annotations

import asyncio
import json
from typing import Any


async def ask(port: int, route: str, tokens: int, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request for a greedy stream of exactly `tokens` tokens, usage at its end; the caller closes the writer."""
    options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({**fields, **options, **streamed}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/{route} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    return reader, writer
