"""How an answer goes out: whole, or as a stream of events that begins at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.jobs import Answering, ChoiceEvent
from forerun.server.leaving import unless_client_leaves
from forerun.server.problems import Problem, problem_of
from forerun.server.serving import backend_of
from forerun.server.sse import EventStream, WireEvent, named_event


class Answer(Protocol):
    """One API's way to tell an answer: used once, by either method."""

    def frames(self) -> AsyncGenerator[bytes]:
        """Whole events as bytes. Raises nothing: the answer has begun, so that errors are events, too."""
        ...

    async def whole(self) -> Response:
        """The answer when it is finished. Raises what the answering raises."""
        ...


async def sent(request: Request, answering: Answering, answer: Answer, *, streams: bool) -> Response:
    """The response to a request whose answering has been started; a client that leaves ends it."""
    if streams:
        keep_alive = backend_of(request).settings.keep_alive
        return EventStream(answer.frames(), close=answering.aclose, keep_alive=keep_alive)
    return await unless_client_leaves(request, answer.whole())


class NamedEvents(Protocol):
    """Turns the events of an answer into those of an API whose events have names, and into its whole value."""

    def begin(self) -> Sequence[WireEvent]:
        """What a stream starts with."""
        ...

    def push(self, event: ChoiceEvent) -> Sequence[WireEvent]:
        """What one step's addition makes."""
        ...

    def fail(self, problem: Problem) -> Sequence[WireEvent]:
        """What a stream ends with whose answering failed."""
        ...


class NamedEventsAnswer:
    """Implements Answer. `value` is what `events` make of the answer, whole once they were told all of it."""

    def __init__(self, answering: Answering, events: NamedEvents, value: Mapping[str, Any]) -> None:
        self._answering = answering
        self._events = events
        self._value = value

    async def frames(self) -> AsyncGenerator[bytes]:
        yield _encoded(self._events.begin())
        try:
            async for event in self._answering:
                if told := self._events.push(event):
                    yield _encoded(told)
        except Exception as error:  # noqa: BLE001 (the answer has begun: whatever went wrong is told as an event)
            yield _encoded(self._events.fail(problem_of(error)))

    async def whole(self) -> Response:
        try:
            async for event in self._answering:
                self._events.push(event)
        finally:
            await self._answering.aclose()
        return Response(msgspec.json.encode(self._value), media_type="application/json")


def _encoded(events: Sequence[WireEvent]) -> bytes:
    return b"".join(named_event(event) for event in events)
