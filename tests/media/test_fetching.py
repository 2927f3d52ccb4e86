"""Media from other hosts: only from those that are allowed, never from private addresses, within bounds of size and
time, and every redirect is looked at again."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forerun.errors import InvalidRequestError
from forerun.media.addresses import IPAddress, allowed_host
from forerun.media.fetching import MediaFetcher
from forerun.media.limits import MediaLimits

LIMITS = MediaLimits(max_item_bytes=1000, fetch_seconds=5.0)
PICTURE = b"\x89PNG and so on"
Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def moved(to: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode()


class Site:
    """What a server on this machine was asked."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[str] = []
        """The head of each request."""

    def url(self, path: str, host: str = "pictures.example") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def site(replies: Mapping[str, Reply]) -> AsyncIterator[Site]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        found.asked.append(head)
        reply = replies[head.split(" ")[1]]
        try:
            if callable(reply):
                await reply(writer)
            else:
                writer.write(reply.replace(b"PORT", str(found.port).encode()))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    found = Site(server.sockets[0].getsockname()[1])
    async with server:
        yield found


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to; what is asked is kept under "asked"."""
    known: dict[str, list[str]] = {"pictures.example": ["127.0.0.1"], "asked": []}

    def resolve(host: str, port: Any, *_: Any, **__: Any) -> list[Any]:
        known["asked"].append(host)
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


def on_this_machine(address: IPAddress) -> bool:
    return address == ipaddress.ip_address("127.0.0.1")


def fetcher(found: Site, *hosts: str, limits: MediaLimits = LIMITS) -> MediaFetcher:
    allowed = [allowed_host(f"{host}:{found.port}") for host in hosts or ("pictures.example",)]
    return MediaFetcher(allowed, limits, is_address_allowed=on_this_machine)


async def refused(asked: MediaFetcher, url: str) -> str:
    with pytest.raises(InvalidRequestError) as error:
        await asked.fetch(url, "it")
    return str(error.value)


@pytest.mark.usefixtures("names")
def test_a_picture_is_fetched_without_anything_that_could_give_the_caller_away() -> None:
    async def main() -> None:
        async with site({"/a.png?b=c": ok(PICTURE)}) as found:
            assert await fetcher(found).fetch(found.url("/a.png?b=c"), "it") == PICTURE
            lines = found.asked[0].lower().split("\r\n")
            assert f"host: pictures.example:{found.port}" in lines
            assert {line.partition(":")[0] for line in lines[1:] if line} == {
                "host", "user-agent", "accept", "accept-encoding",
            }  # fmt: skip

    asyncio.run(main())


@pytest.mark.usefixtures("names")
def test_a_host_that_is_not_allowed_is_not_even_resolved(names: dict[str, list[str]]) -> None:
    async def main() -> None:
        async with site({}) as found:
            asked = fetcher(found)
            assert "--allow-media-url other.example" in await refused(asked, "http://other.example/a.png")
            assert "does not fetch from" in await refused(asked, "http://pictures.example/a.png")  # another port
            assert "does not fetch from" in await refused(asked, f"http://127.0.0.1:{found.port}/a.png")
            assert "no user name" in await refused(asked, f"http://u:p@pictures.example:{found.port}/a.png")
            for wrong in ("http://", "http:///a", "https:// bad", "http://[::1", "http://a.b:99999/"):
                assert (await refused(asked, wrong)).startswith("it: is")
            assert names["asked"] == []
            assert found.asked == []

    asyncio.run(main())


def test_a_name_of_a_private_address_is_refused_where_it_is_connected_to(names: dict[str, list[str]]) -> None:
    async def main() -> None:
        async with site({"/": ok(PICTURE)}) as found:
            asked = MediaFetcher([allowed_host(f"pictures.example:{found.port}")], LIMITS)
            assert "pictures.example is at a private address, 127.0.0.1" in await refused(asked, found.url("/"))
            names["pictures.example"] = ["10.0.0.1", "169.254.169.254"]
            assert "private address, 10.0.0.1" in await refused(asked, found.url("/"))
            assert found.asked == []

    asyncio.run(main())


def test_the_address_that_was_looked_at_is_the_one_that_is_connected_to(names: dict[str, list[str]]) -> None:
    names["pictures.example"] = ["10.0.0.1", "127.0.0.1"]

    async def main() -> None:
        async with site({"/": ok(PICTURE)}) as found:
            assert await fetcher(found).fetch(found.url("/"), "it") == PICTURE
        assert names["asked"] == ["pictures.example"]

    asyncio.run(main())


def test_every_redirect_is_looked_at_as_if_a_caller_had_sent_it(names: dict[str, list[str]]) -> None:
    names["inner.example"] = ["10.0.0.1"]
    replies: dict[str, Reply] = {
        "/a": moved("/b"),
        "/b": moved("http://pictures.example:PORT/c", 307),
        "/c": ok(PICTURE),
        "/elsewhere": moved("http://other.example/"),
        "/inside": moved("http://inner.example:PORT/"),
        "/number": moved("http://169.254.169.254/latest/meta-data"),
        "/file": moved("file:///etc/passwd"),
        "/circle": moved("/circle"),
        "/nowhere": b"HTTP/1.1 302 Moved\r\ncontent-length: 0\r\n\r\n",
    }

    async def main() -> None:
        async with site(replies) as found:
            asked = fetcher(found, "pictures.example", "inner.example")
            assert await asked.fetch(found.url("/a"), "it") == PICTURE
            assert "does not fetch from" in await refused(asked, found.url("/elsewhere"))
            assert "private address" in await refused(asked, found.url("/inside"))
            assert "does not fetch from" in await refused(asked, found.url("/number"))
            assert "http or https" in await refused(asked, found.url("/file"))
            found.asked.clear()
            assert "redirected more than 3 times" in await refused(asked, found.url("/circle"))
            assert len(found.asked) == 4
            assert "answered 302" in await refused(asked, found.url("/nowhere"))

    asyncio.run(main())


def test_what_began_encrypted_is_not_gone_on_with_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(*_: object) -> str:
        return "http://pictures.example/a.png"

    monkeypatch.setattr(MediaFetcher, "_get", get)

    async def main() -> None:
        asked = MediaFetcher([allowed_host("pictures.example")], LIMITS)
        assert "without encryption" in await refused(asked, "https://pictures.example/a.png")

    asyncio.run(main())


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"40\r\n" + b"x" * 64 + b"\r\n")
        await writer.drain()


async def silent(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
    await writer.drain()
    await asyncio.Event().wait()


@pytest.mark.usefixtures("names")
def test_what_is_too_large_compressed_missing_or_cut_is_refused() -> None:
    replies: dict[str, Reply] = {
        "/announced": b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
        "/endless": endless,
        "/packed": ok(PICTURE, "content-encoding: gzip"),
        "/missing": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        "/cut": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc",
        "/nonsense": b"\0\1\2\3\r\n\r\n",
        "/closed": b"",
    }

    async def main() -> None:
        async with site(replies) as found:
            asked = fetcher(found)
            assert "has 1001 bytes, at most 1000 are read" in await refused(asked, found.url("/announced"))
            assert "has more than 1000 bytes" in await refused(asked, found.url("/endless"))
            assert "compressed" in await refused(asked, found.url("/packed"))
            assert "pictures.example answered 404" in await refused(asked, found.url("/missing"))
            for path in ("/cut", "/nonsense", "/closed"):
                assert "cannot be fetched: " in await refused(asked, found.url(path))

    asyncio.run(main())


def test_a_host_that_says_nothing_and_a_name_that_is_none_end_in_time(names: dict[str, list[str]]) -> None:
    async def main() -> None:
        async with site({"/": silent}) as found:
            asked = fetcher(found, limits=MediaLimits(fetch_seconds=0.1))
            assert "was not there within 0.1 s" in await refused(asked, found.url("/"))
            del names["pictures.example"]
            assert "cannot be fetched: " in await refused(asked, found.url("/"))

    asyncio.run(main())
