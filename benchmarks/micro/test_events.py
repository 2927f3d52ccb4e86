"""A stream's events as bytes: 1,000 tokens of one answer, from the engine's events to what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pytest_benchmark.fixture import BenchmarkFixture

from forerun.bench.reading import events
from forerun.chat.pieces import Content
from forerun.server.chat_answers import ChatAnswer
from forerun.server.jobs import ChoiceEvent
from forerun.server.wire.chat import ChatRequest

_EVENTS = 1000
_BODY = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True})


class _Answering:
    """Implements jobs.Answering: an answer that is there already."""

    id = "micro"
    prompt_tokens = 1

    async def __aiter__(self) -> AsyncIterator[ChoiceEvent]:
        for _ in range(_EVENTS):
            yield ChoiceEvent(index=0, pieces=(Content(" word"),), text=" word", token_ids=(1,))

    async def aclose(self) -> None:
        """Nothing runs."""


def _frames() -> list[bytes]:
    async def collected() -> list[bytes]:
        return [frame async for frame in ChatAnswer(_Answering(), _BODY, "m", lambda _: b"").frames()]

    return asyncio.run(collected())


def test_writing_1_000_tokens_as_events(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(_frames)) == _EVENTS + 1


def test_reading_1_000_events_back(benchmark: BenchmarkFixture) -> None:
    """The client of `forerun bench`, which does this after the clock has stopped."""
    pieces = [(float(at), frame) for at, frame in enumerate(_frames())]
    assert len(benchmark(lambda: list(events(pieces)))) >= _EVENTS
