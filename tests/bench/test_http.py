"""Connections of the client, against servers that answer in every way HTTP allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from forerun.bench.http import Address, send
from forerun.errors import BenchmarkError


@asynccontextmanager
async def answering(*pieces: bytes, stays_open: bool = False) -> AsyncIterator[Address]:
    """A server that sends these bytes to whoever asks, each once the client is known to have had the one before."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if stays_open:
            await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        done.set()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
    ],
    ids=["length", "chunked", "until it closes"],
)
def test_a_body_is_read_however_it_ends(answer: bytes) -> None:
    async def ask() -> tuple[int, bytes]:
        async with answering(answer) as address:
            reply = await (await send(address, "GET", "/")).ended()
            return reply.status, reply.body

    assert asyncio.run(ask()) == (200, b"hello")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "before it answered"),
        (b"no http at all\r\n\r\n", "no HTTP"),
    ],
)
def test_a_server_that_does_not_answer_is_told(answer: bytes, words: str) -> None:
    async def ask() -> None:
        async with answering(answer) as address:
            await (await send(address, "GET", "/")).ended()

    with pytest.raises(BenchmarkError, match=words):
        asyncio.run(ask())


def test_nobody_who_listens_is_told_with_the_address() -> None:
    async def ask() -> None:
        async with answering(b"") as address:
            pass
        await send(address, "GET", "/")

    with pytest.raises(BenchmarkError, match=r"http://127\.0\.0\.1:\d+ cannot be reached"):
        asyncio.run(ask())


def test_one_can_wait_for_events_and_leave_before_the_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b"9\r\ndata: a\n\n\r\n"

    async def ask() -> bytes:
        async with answering(head + event, event, stays_open=True) as address:
            connection = await send(address, "GET", "/")
            await connection.reached(2)
            connection.leave()
            return (await connection.ended()).body

    assert asyncio.run(ask()) == b"data: a\n\n" * 2


def test_waiting_for_more_events_than_come_ends_with_the_answer() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata: a\n\n"

    async def ask() -> None:
        async with answering(answer) as address:
            await (await send(address, "GET", "/")).reached(5)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("http://localhost/v1", Address("localhost", 80)),
        ("https://example.org/llm/v1/", Address("example.org", 443, "/llm", is_tls=True)),
        ("http://[::1]:9", Address("::1", 9)),
    ],
)
def test_addresses_are_read_with_or_without_v1(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:port", "http://[", ""])
def test_what_is_no_address_is_refused_by_the_option_s_name(url: str) -> None:
    with pytest.raises(BenchmarkError, match="--url"):
        Address.parse(url)
