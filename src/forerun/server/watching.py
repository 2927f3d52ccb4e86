"""Follows each HTTP request from its first byte to its last (records.py)."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.problems import answer_error
from forerun.server.records import OTHER, RequestObserver, RequestRecord, serving_record

REQUEST_ID_HEADER: Final = "x-request-id"
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}\Z")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Watch:
    """The outermost layer of the application: every response, whoever gives it, has a request id and is counted.

    Starlette has one more around it, which answers what nobody foresaw; that is answered here, so that it is seen.
    """

    def __init__(
        self, app: ASGIApp, observers: Sequence[RequestObserver], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._observers = tuple(observers)
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = self._record(scope)
        for observer in self._observers:
            observer.started(record)
        try:
            with serving_record(record):
                await self._answer(record, scope, receive, send)
        finally:
            _learn_route(record, scope)
            record.finish()

    async def _answer(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                _begin(record, message)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            record.fail("internal")
            if has_begun:
                raise
            response = await answer_error(Request(scope), error)
            await response(scope, receive, sending)

    def _record(self, scope: Scope) -> RequestRecord:
        headers = Headers(scope=scope)
        method = scope["method"]
        return RequestRecord(
            id=request_id(headers.get(REQUEST_ID_HEADER)),
            method=method if method in _METHODS else OTHER,
            arrival=self._clock(),
            observers=self._observers,
            clock=self._clock,
            headers=headers,
        )


def request_id(given: str | None) -> str:
    """The caller's, where it is short and plain; else a new one."""
    if given is not None and _SANE_ID.match(given):
        return given
    return f"req-{secrets.token_hex(12)}"


def _begin(record: RequestRecord, message: Message) -> None:
    record.status = message["status"]
    headers = MutableHeaders(scope=message)
    headers[REQUEST_ID_HEADER] = record.id
    record.is_stream = headers.get("content-type", "").startswith("text/event-stream")


def _learn_route(record: RequestRecord, scope: Scope) -> None:
    path: Any = getattr(scope.get("route"), "path", None)
    record.route = path if isinstance(path, str) else OTHER
    tenant: Any = scope.get("state", {}).get("tenant")
    record.tenant = tenant if isinstance(tenant, str) else ""
