"""Engines in processes of their own, asleep between answers.

One OpenMP team a process (see bare.py), and every process has its own luck with memory: figures come from several.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

from benchmarks.bare import Timing
from forerun.compose import Engine
from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams, Usage


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller of `Engine.stream` sees: from the call to the first token, and from there to the last one."""

    timing: Timing
    usage: Usage

    @property
    def rate(self) -> float:
        """Tokens a second after the first."""
        return (len(self.timing.tokens) - 1) / self.timing.decode


class EngineProcess:
    """An engine with `options` (those of Engine.load) in a child process."""

    def __init__(self, options: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(options, theirs), daemon=True)
        self._process.start()
        self._connection.recv()

    def answer(self, prompt: str | Tokens, params: SamplingParams) -> Answer:
        self._connection.send((prompt, params))
        answer = self._connection.recv()
        assert isinstance(answer, Answer)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join()


def _serve(options: dict[str, Any], connection: Connection) -> None:
    with Engine.load(**options) as engine:
        connection.send("ready")
        while True:
            try:
                prompt, params = connection.recv()
            except EOFError:
                return
            connection.send(_answer(engine, prompt, params))


def _answer(engine: Engine, prompt: str | Tokens, params: SamplingParams) -> Answer:
    tokens: list[int] = []
    usage: Usage | None = None
    started = first = time.perf_counter()
    for output in engine.stream(prompt, params):
        if not tokens:
            first = time.perf_counter()
        tokens.extend(output.token_ids)
        usage = output.usage
    assert usage is not None
    return Answer(Timing(first - started, time.perf_counter() - first, tuple(tokens)), usage)
