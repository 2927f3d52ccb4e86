"""Speculation on against off: copying and free prose, one stream, every setting in a process of its own, interleaved.

The settings are off, automatic, and fixed lengths (the sweep that automatic is compared with). A model pair comes from
the environment: FORERUN_TARGET and FORERUN_DRAFT; without it SmolLM2 drafts by n-gram alone.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

from benchmarks.report import spread
from forerun.compose import Engine
from forerun.core.request import SamplingParams, Usage

_TOKENS = 160
_ROUNDS = 5
_SETTINGS: dict[str, Any] = {"off": 0, "auto": "auto", "fixed 2": 2, "fixed 4": 4, "fixed 8": 8, "fixed 16": 16}

_TEXT = (
    "The lighthouse stands on a narrow point of rock about two miles north of the harbour. It was built in 1871 by a "
    "company from the mainland and has been kept by the same family ever since. Every evening at dusk the keeper "
    "climbs the one hundred and twelve steps to the lantern room, trims the wick, winds the clockwork and opens the "
    "shutters. On clear nights the beam can be seen from the hills behind the town, and on foggy ones the bell is rung "
    "by hand every half minute. The oldest of the keepers, who is now ninety-one, says that the sea has not been the "
    "same since the new breakwater came."
)

WORKLOADS = {
    "copy": [f"Repeat this text word for word, and nothing else:\n\n{_TEXT}"] * _ROUNDS,
    "prose": [
        f"Write a short story about {subject}. Use vivid language and do not repeat yourself."
        for subject in ("a clockmaker", "two rivers", "a lost letter", "the last tram", "an island of cats")
    ],
}


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds an answer took from its first token on, and what it used."""

    decode: float
    tokens: int
    usage: Usage


class EngineProcess:
    """An engine in a child process, asleep between answers."""

    def __init__(self, options: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(options, theirs), daemon=True)
        self._process.start()
        self._connection.recv()

    def answer(self, prompt: str) -> Run:
        self._connection.send(prompt)
        run = self._connection.recv()
        assert isinstance(run, Run)
        return run

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
                prompt = connection.recv()
            except EOFError:
                return
            connection.send(_answer(engine, prompt))


def _answer(engine: Engine, prompt: str) -> Run:
    tokens, first = 0, 0.0
    usage: Usage | None = None
    for output in engine.stream(prompt, SamplingParams(max_tokens=_TOKENS, ignore_eos=True)):
        first = first or time.perf_counter()
        tokens += len(output.token_ids)
        usage = output.usage
    assert usage is not None
    return Run(time.perf_counter() - first, tokens, usage)


def run() -> dict[str, object]:
    """Speed against off (1.0 = off), by workload and setting: medians over rounds of paired ratios."""
    target, draft = os.environ.get("FORERUN_TARGET", "smollm2"), os.environ.get("FORERUN_DRAFT")
    options = {"model": target, "draft": draft, "n_ctx": 2048, "n_threads": 2, "reuse_prefixes": False}
    figures: dict[str, object] = {"target": os.path.basename(target), "draft": os.path.basename(draft or "")}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(EngineProcess({**options, "speculation": setting}))
            for name, setting in _SETTINGS.items()
        }
        for workload, prompts in WORKLOADS.items():
            runs = _interleaved(engines, prompts)
            for name in _SETTINGS:
                figures |= _figures(workload, name, runs)
    return figures


def _interleaved(engines: dict[str, EngineProcess], prompts: list[str]) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for index, prompt in enumerate(prompts):
        order = list(engines) if index % 2 else list(engines)[::-1]
        for name in order:
            runs[name].append(engines[name].answer(prompt))
    return runs


def _figures(workload: str, name: str, runs: dict[str, list[Run]]) -> dict[str, object]:
    ratios = [_rate(own) / _rate(off) for own, off in zip(runs[name], runs["off"], strict=True)]
    last = runs[name][-1].usage
    figures: dict[str, object] = {f"{workload} {name}: speed against off": spread(ratios)}
    if name == "off":
        return {f"{workload} off: ms a token": spread([1e3 / _rate(run) for run in runs[name]])}
    figures[f"{workload} {name}: accepted of drafted (last)"] = f"{last.accepted_tokens} of {last.drafted_tokens}"
    return figures


def _rate(run: Run) -> float:
    """Tokens a second after the first."""
    return (run.tokens - 1) / run.decode
