"""Who may call: case E1, browsers, bodies that are too large."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forerun.errors import InvalidConfigError
from forerun.server.security import ApiKeys
from forerun.server.settings import ServerSettings, read_keys
from tests.server.support import HELLO_BODY, ListeningServer, ServerUnderTest, listening, served

KEY, OTHER = "sk-the-right-key", "sk-another-right-key"
KEYED = ServerSettings(api_keys=frozenset({KEY, OTHER}))


def all_routes(server: ServerUnderTest) -> Iterator[tuple[str, str]]:
    for path, methods in server.app.openapi()["paths"].items():
        for method in methods:
            yield method.upper(), path.replace("{model}", "fake")
    yield from (("GET", path) for path in ("/docs", "/openapi.json", "/redoc", "/", "/nowhere", "/v1", "/metrics"))


def connected(server: ListeningServer) -> socket.socket:
    address = httpx.URL(server.url)
    return socket.create_connection((address.host, address.port or 0), timeout=10)


def test_case_e1_without_a_right_key_every_route_but_health_is_401() -> None:
    wrong = [
        {},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"authorization": f"Bearer  {KEY}"},
        {"authorization": f"Bearer {KEY} "},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong", "x-api-key": KEY},
        {"x-api-key": KEY[:-1]},
    ]

    async def main() -> None:
        async with served(settings=KEYED) as server:
            routes = list(all_routes(server))
            assert len(routes) > 12
            for method, path in routes:
                for other in (path, "/" + path, path.upper(), path + "/"):
                    for headers in wrong:
                        if path == "/health" and other == path:
                            continue
                        response = await server.client.request(method, "http://localhost" + other, headers=headers)
                        assert response.status_code == 401, (method, other, headers)
                        assert KEY.lower() not in response.text.lower()
                        assert response.json()["error"]["type"] == "authentication_error"
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"):
                response = await server.client.request(method, "/v1/chat/completions")
                assert response.status_code == 401
            assert (await server.client.post("/health")).status_code == 401

    asyncio.run(main())


def test_case_e1_a_right_key_works_and_health_needs_none() -> None:
    async def main() -> None:
        async with served(settings=KEYED) as server:
            for headers in (
                {"authorization": f"Bearer {KEY}"},
                {"authorization": f"bearer {OTHER}"},
                {"x-api-key": OTHER},
            ):
                response = await server.client.post("/v1/chat/completions", json=HELLO_BODY, headers=headers)
                assert response.status_code == 200
            assert (await server.client.get("/health")).status_code == 200
            assert (await server.client.head("/health")).status_code in (200, 405)

    asyncio.run(main())


def test_keys_do_not_show() -> None:
    assert KEY not in repr(KEYED)
    assert KEY not in repr(ApiKeys(KEYED.api_keys))


def test_each_key_has_prefixes_of_its_own() -> None:
    async def main() -> None:
        async with served(settings=KEYED) as server:

            async def cached(key: str, **fields: str) -> int:
                headers = {"authorization": f"Bearer {key}"}
                body = {**HELLO_BODY, "messages": [{"role": "user", "content": "x" * 200}], **fields}
                response = await server.client.post("/v1/chat/completions", json=body, headers=headers)
                tokens: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                return tokens

            assert await cached(KEY) == 0
            assert await cached(KEY) > 200
            assert await cached(OTHER) == 0
            assert await cached(KEY, cache_salt="s") == 0
            assert await cached(KEY, cache_salt="s") > 200
            assert await cached(KEY, user="somebody", prompt_cache_key="k") > 200

    asyncio.run(main())


def test_keys_are_read_from_a_file_and_bad_ones_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the team's\n{KEY}\n\n  {OTHER}  \n")
    assert read_keys(file) == {KEY, OTHER}
    file.write_text("# none\n")
    with pytest.raises(InvalidConfigError, match="holds no key"):
        read_keys(file)
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        read_keys(tmp_path / "nothing")
    for bad in ("short", "has space inside", "umlaut-äöü-key"):
        with pytest.raises(InvalidConfigError, match="api_keys") as caught:
            ServerSettings(api_keys=frozenset({bad}))
        assert bad not in str(caught.value)


def test_a_body_beyond_the_limit_is_refused_told_or_not() -> None:
    async def chunks() -> object:
        for _ in range(100):
            yield b" " * 1000

    async def main() -> None:
        async with served(settings=ServerSettings(max_body_bytes=10_000)) as server:
            response = await server.client.post("/v1/chat/completions", content=b" " * 10_001)
            assert response.status_code == 413
            assert "10000 bytes" in response.json()["error"]["message"]
            response = await server.client.post("/v1/chat/completions", content=chunks())  # type: ignore[arg-type]
            assert response.status_code == 413
            assert (await server.chat()).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize("how", [b"content-length: 33554432", b"transfer-encoding: chunked"])
def test_a_client_that_is_still_sending_learns_that_its_body_is_too_large(how: bytes) -> None:
    piece = b" " * 2**20
    with listening(settings=ServerSettings(port=0, max_body_bytes=10_000)) as server, connected(server) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n" + how + b"\r\n\r\n")
        for _ in range(32):  # more than sockets hold: sending fails where the server has closed
            client.sendall(piece if b"length" in how else b"100000\r\n" + piece + b"\r\n")
        if b"length" not in how:
            client.sendall(b"0\r\n\r\n")
        answer = client.recv(1000)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer


def test_a_body_that_never_ends_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.server.security._DISCARDED_WITHIN", 0.1)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20000\r\n\r\n"
    with listening(settings=ServerSettings(port=0, max_body_bytes=10_000)) as server, connected(server) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_web_pages_may_call_only_where_their_origin_is_allowed() -> None:
    preflight = {"origin": "https://page.example", "access-control-request-method": "POST"}

    async def main() -> None:
        async with served() as server:
            response = await server.client.options("/v1/chat/completions", headers=preflight)
            assert response.status_code == 403
            assert "access-control-allow-origin" not in response.headers
        allowed = ServerSettings(cors_origins=("https://page.example",), api_keys=frozenset({KEY}))
        async with served(settings=allowed) as server:
            response = await server.client.options("/v1/chat/completions", headers=preflight)
            assert response.headers["access-control-allow-origin"] == "https://page.example"
            other = await server.client.get("/health", headers={"origin": "https://other.example"})
            assert "access-control-allow-origin" not in other.headers
            refused = await server.client.get("/v1/models", headers={"origin": "https://page.example"})
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == "https://page.example"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:8080", 200), ("[::1]:8080", 200), ("evil.example", 403), ("evil.example:80", 403)],
)
def test_without_a_key_a_server_on_loopback_answers_to_local_names_alone(host: str, status: int) -> None:
    async def main() -> None:
        async with served() as server:
            response = await server.client.get("/v1/models", headers={"host": host})
            assert response.status_code == status
        async with served(settings=ServerSettings(api_keys=frozenset({KEY}))) as server:
            headers = {"host": host, "authorization": f"Bearer {KEY}"}
            assert (await server.client.get("/v1/models", headers=headers)).status_code == 200

    asyncio.run(main())


LOCAL_ORIGINS = ("http://localhost", "http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:5173")
FOREIGN_ORIGINS = (
    "http://evil.example",
    "https://evil.example:8080",
    "http://localhost.evil.example",
    "null",
    "",
    "file://localhost",
    "http://",
    "http://other.example",
)


def test_without_a_key_a_server_on_loopback_is_called_by_no_web_page_from_elsewhere() -> None:
    """A page may send plain text without asking first: it reads no answer, but the engine has worked."""
    page = "https://page.example"

    async def main() -> None:
        async with served() as server:

            async def status(path: str, origin: str) -> int:
                headers = {"origin": origin, "content-type": "text/plain"}
                body = json.dumps(HELLO_BODY if path != "/cache/clear" else {})
                return (await server.client.post(path, content=body, headers=headers)).status_code

            for origin in LOCAL_ORIGINS:
                assert await status("/v1/chat/completions", origin) == 200, origin
            for origin in (*FOREIGN_ORIGINS, page):
                for path in ("/v1/chat/completions", "/cache/clear"):
                    assert await status(path, origin) == 403, origin
            two = [("origin", "http://localhost"), ("origin", "http://evil.example")]
            refused = await server.client.get("/v1/models", headers=two)
            assert refused.json()["error"]["code"] == "wrong_origin"

    asyncio.run(main())


@pytest.mark.parametrize(("allowed", "null"), [("https://page.example", 403), ("*", 200)])
def test_an_allowed_web_page_may_call_without_a_key(allowed: str, null: int) -> None:
    async def main() -> None:
        async with served(settings=ServerSettings(cors_origins=(allowed,))) as server:
            for origin, expected in (
                ("https://page.example", 200),
                ("https://page.example.evil", null),
                ("null", null),
            ):
                response = await server.client.get("/v1/models", headers={"origin": origin})
                assert response.status_code == expected, origin

    asyncio.run(main())


def test_only_loopback_addresses_count_as_loopback() -> None:
    hosts = {"127.0.0.1": True, "localhost": True, "::1": True, "0.0.0.0": False, "10.0.0.1": False, "box": False}
    assert {host: ServerSettings(host=host).is_loopback for host in hosts} == hosts
