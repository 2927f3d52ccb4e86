"""Who may call, from where, and with how much: plain ASGI around everything else, so that no route is forgotten."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.problems import Problem, ProblemError, problem_response

_OPEN_PATH: Final = "/health"
_OPEN_METHODS: Final = frozenset({"GET", "HEAD"})
_TENANT_DIGITS: Final = 16
_DISCARDED_BYTES: Final = 64 * 2**20
_DISCARDED_WITHIN: Final = 5.0
"""Seconds."""
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class ApiKeys:
    """Which keys are right; holds their digests alone, and compares with all of them in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in sorted(keys))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"ApiKeys({len(self._digests)})"

    def tenant_of(self, key: str) -> str | None:
        """Whose key it is: a name for what is kept apart by; None where it is nobody's."""
        given = _digest(key)
        found = [hmac.compare_digest(given, digest) for digest in self._digests]  # all, whichever is right
        return f"key-{given.hex()[:_TENANT_DIGITS]}" if any(found) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(b"forerun-api-key\0" + key.encode("utf-8", "surrogateescape")).digest()


def key_of(headers: Headers) -> str | None:
    """The key a client sends: OpenAI's clients as a bearer token, Anthropic's as x-api-key."""
    scheme, space, token = headers.get("authorization", "").partition(" ")
    if space and scheme.lower() == "bearer":
        return token
    return headers.get("x-api-key") if "authorization" not in headers else None


class KeyCheck:
    """Lets nobody in without a key, whatever the path, the method or the spelling; /health alone is open."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._keys:
            await self._app(scope, receive, send)
            return
        is_open = scope["path"] == _OPEN_PATH and scope.get("method") in _OPEN_METHODS
        key = key_of(Headers(scope=scope))
        tenant = None if key is None else self._keys.tenant_of(key)
        if tenant is None and not is_open:
            how = "send it as 'Authorization: Bearer KEY'"
            said = f"an API key is needed: {how}" if key is None else "this API key is not right"
            problem = Problem(status=401, message=said, kind="authentication_error", code="invalid_api_key")
            response = problem_response(problem, scope["path"], {"www-authenticate": "Bearer", "connection": "close"})
            await response(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant or ""
        await self._app(scope, receive, send)


class LocalCheck:
    """Answers this machine alone: requests to one of its names, and of web pages those that come from it.

    Against web pages in the user's browser. One may have its own name point to 127.0.0.1 and then call as if the server
    were its own (DNS rebinding): its requests carry that name as Host. And any page may send what takes no preflight:
    it reads no answer, but the engine would work for it. Its requests carry where it is from as Origin.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], origins: Iterable[str] = ()) -> None:
        """`origins` are web pages that may call, too; "*" is all."""
        self._app = app
        self._names = _LOCAL_NAMES | {name.lower() for name in names}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None if scope["type"] == "lifespan" else self._problem(Headers(scope=scope))
        if problem is None:
            await self._app(scope, receive, send)
            return
        await problem_response(problem, scope["path"])(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        host = _host_name(headers.get("host", ""))
        if host and host not in self._names:
            said = "this server answers for localhost only; start it with an API key to be called by other names"
            return Problem(status=403, message=said, code="wrong_host")
        origins = headers.getlist("origin")
        if all(self._may_call(origin) for origin in origins):
            return None
        said = f"web pages of {origins[0][:200]!r} may not call this server; start it with --cors-origin to let them"
        return Problem(status=403, message=said, code="wrong_origin")

    def _may_call(self, origin: str) -> bool:
        scheme, _, host = origin.partition("://")
        is_local = scheme in ("http", "https") and _host_name(host) in self._names
        return is_local or origin in self._origins or "*" in self._origins


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


class HeaderLimit:
    """Refuses headers and addresses beyond a size. What has no end is stopped by `listening.BoundedProtocol`."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _header_bytes(scope) > self._max_bytes:
            said = f"the headers have more than the {self._max_bytes} bytes this server reads"
            problem = Problem(status=431, message=said, code="headers_too_large")
            await problem_response(problem, "", {"connection": "close"})(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _header_bytes(scope: Scope) -> int:
    address = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    return address + sum(len(name) + len(value) for name, value in scope["headers"])


class BodyLimit:
    """Refuses bodies beyond a size: at once where the length is told, else as soon as it is passed.

    Some of what is still coming is read and thrown away first: a connection that is closed with bytes unread is reset,
    and a client that only sends learns of the reset and not of the answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        said = f"the body has more than the {max_bytes} bytes this server reads"
        self._problem = Problem(status=413, message=said, code="body_too_large")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._max_bytes:
            if headers.get("expect", "").lower() != "100-continue":  # else it waits for the answer before it sends
                await _discard(receive)
            response = problem_response(self._problem, scope["path"], {"connection": "close"})
            await response(scope, receive, send)
            return
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                await _discard(receive)
                raise ProblemError(self._problem)
            return message

        async def closing(message: Message) -> None:
            if read > self._max_bytes and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, limited, closing)


async def _discard(receive: Receive) -> None:
    """Read on to the end of a body, within bounds."""
    left = _DISCARDED_BYTES
    try:
        async with asyncio.timeout(_DISCARDED_WITHIN):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return
