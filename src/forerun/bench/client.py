"""Asks one server, and keeps what it answered and what that took.

workload ── ask ──► Client ── send ──► http.py
                      │ measured(): answers, the server's counters, CPU time and memory
                      ▼
                 Measurement
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import msgspec

from forerun.bench.http import Address, Connection, send
from forerun.bench.measuring import Measurement
from forerun.bench.processes import ProcessTree, Taken
from forerun.bench.reading import Answer, TokenCounts, prompt_tokens, read_answer, require_done
from forerun.errors import BenchmarkError

Message: TypeAlias = Mapping[str, Any]
_EVALUATED: Final = re.compile(
    rb'^(?:llamacpp:prompt_tokens_total|forerun:prompt_tokens_total\{[^}]*source="computed"[^}]*\})\s+(\S+)$', re.M
)
"""Prompt tokens that were computed, as llama.cpp's server, the Python example and Forerun call them."""
_PATIENCE: Final = 1800.0
"""Seconds that an answer may take."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server to be asked."""

    name: str
    address: Address
    model: str
    key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request's body, for servers that have other words for something."""
    process: ProcessTree | None = None
    """Where it runs on this machine."""


@dataclass(frozen=True, slots=True)
class _Asked:
    label: str
    body: dict[str, Any]
    max_tokens: int


class Pending:
    """An answer that is coming."""

    def __init__(self, asked: _Asked, connection: Connection, keep: list[tuple[_Asked, Answer]] | None) -> None:
        self._asked = asked
        self._connection = connection
        self._keep = keep

    async def reached(self, events: int) -> None:
        """Until about so many tokens have come: a server sends most of them as an event each."""
        await self._connection.reached(events)

    async def answer(self) -> Answer:
        """Raises BenchmarkError where the server refused or cut it, or took half an hour."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._connection.ended()
        except TimeoutError as error:
            raise BenchmarkError(f"the server did not finish an answer within {_PATIENCE:g} s") from error
        finally:
            self._connection.leave()
        return self._read()

    async def leave(self) -> Answer:
        """Close the connection before the end; what has come so far."""
        self._connection.leave()
        return self._read()

    def _read(self) -> Answer:
        asked, connection = self._asked, self._connection
        answer = read_answer(connection.reply, label=asked.label, began=connection.began, asked=asked.max_tokens)
        if self._keep is not None:
            self._keep.append((asked, answer))
        return answer


class Client:
    """Asks one server. What is asked within `measured` is kept for its Measurement."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._kept: list[tuple[_Asked, Answer]] | None = None
        self._measured: Measurement | None = None

    # --- asking ---

    async def ask(self, messages: Sequence[Message], max_tokens: int, label: str = "", **fields: Any) -> Answer:
        """A greedy answer of exactly `max_tokens`, to its end. Raises BenchmarkError."""
        pending = await self.start(messages, max_tokens, label, **fields)
        return await pending.answer()

    async def start(self, messages: Sequence[Message], max_tokens: int, label: str = "", **fields: Any) -> Pending:
        """The same, while it comes."""
        body = {
            "model": self.target.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **self.target.extra,
            **fields,
        }
        asked = _Asked(label, body, max_tokens)
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return Pending(asked, await self._post({**body, **streamed}), self._kept)

    async def _post(self, body: Mapping[str, Any]) -> Connection:
        target = self.target
        return await send(target.address, "POST", "/v1/chat/completions", msgspec.json.encode(body), target.key)

    async def get(self, route: str) -> bytes:
        """Raises BenchmarkError for any status but 200."""
        reply = await (await send(self.target.address, "GET", route, key=self.target.key)).ended()
        require_done(reply)
        return reply.body

    # --- measuring ---

    @asynccontextmanager
    async def measured(self, **extra: float) -> AsyncIterator[dict[str, float]]:
        """Keep what is asked within. Yields where the workload may put figures of its own."""
        kept: list[tuple[_Asked, Answer]] = []
        figures = dict(extra)
        before, taken, own = await self._evaluated(), self._taken(), time.process_time()
        self._kept = kept
        yield figures
        self._kept = None
        own = time.process_time() - own
        after, taken_after = await self._evaluated(), self._taken()
        answers = [answer for _, answer in kept]
        seconds = max(answer.ended for answer in answers) - min(answer.began for answer in answers) if answers else 0.0
        measured = Measurement(
            tuple(answers),
            seconds,
            evaluated=None if before is None or after is None else round(after - before),
            server_cpu=taken_after.cpu_seconds - taken.cpu_seconds if taken and taken_after else None,
            server_resident=taken_after.resident_bytes if taken_after else None,
            client_cpu=own,
            extra=figures,
        )
        self._measured = await self._counted(measured, kept)

    def take(self) -> Measurement:
        """What `measured` measured last. Raises BenchmarkError where it measured nothing."""
        measured, self._measured = self._measured, None
        if measured is None:
            raise BenchmarkError("the workload measured nothing")
        return measured

    async def _counted(self, measured: Measurement, kept: Sequence[tuple[_Asked, Answer]]) -> Measurement:
        """Where a stream does not say how long its prompt was, ask for the same prompt once more, unstreamed."""
        answers: list[Answer] = []
        for asked, answer in kept:
            if answer.counts.prompt is None and answer.finish:
                reply = await (await self._post({**asked.body, "max_tokens": 1})).ended()
                counts = TokenCounts(prompt_tokens(reply), answer.counts.output, answer.counts.cached)
                answers.append(replace(answer, counts=counts))
            else:
                answers.append(answer)
        return replace(measured, answers=tuple(answers))

    async def _evaluated(self) -> float | None:
        try:
            found = _EVALUATED.findall(await self.get("/metrics"))
        except BenchmarkError:
            return None
        return sum(map(float, found)) if found else None

    def _taken(self) -> Taken | None:
        process = self.target.process
        return process.taken() if process is not None else None
