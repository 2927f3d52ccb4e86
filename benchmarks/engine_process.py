"""Engines in processes of their own, asleep between answers.

One OpenMP team a process (see bare.py), and every process has its own luck with memory: figures come from several.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self, TypeAlias

import numpy as np

from benchmarks.bare import Timing
from forerun.compose import Engine, build
from forerun.core.costs import CostCurve, StepCosts
from forerun.core.prompt import PromptLayout, Tokens
from forerun.core.prompt_text import PromptText
from forerun.core.request import SamplingParams, Usage
from forerun.engine_config import EngineConfig
from forerun.media.picture import Picture


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller of `Engine.stream` sees: from the call to the first token, and from there to the last one."""

    timing: Timing
    usage: Usage
    prompt: tuple[int, ...] = ()
    """The prompt as the model reads it; empty where there is a picture in it."""

    @property
    def rate(self) -> float:
        """Tokens a second after the first."""
        return (len(self.timing.tokens) - 1) / self.timing.decode


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers to prompts that were asked together, and seconds from the call to the last token of all."""

    answers: list[Answer]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens of all streams a second, prompts included."""
        return sum(len(answer.timing.tokens) for answer in self.answers) / self.seconds


@dataclass(frozen=True, slots=True)
class Pictured:
    """A prompt with a picture of noise in it, `side` pixels square."""

    before: str
    side: int
    seed: int
    after: str

    def laid_out(self, engine: Engine) -> PromptLayout:
        pixels = np.random.default_rng(self.seed).integers(0, 256, 3 * self.side**2, dtype=np.uint8)
        picture = Picture.of(self.side, self.side, pixels.tobytes())
        return engine.prompt(PromptText(self.before + self.after, media=((len(self.before), 0),)), media=[picture])


Prompt: TypeAlias = str | Tokens | Pictured


@dataclass(frozen=True, slots=True)
class Curves:
    """What target and draft cost, as the engine measured it when it was loaded."""

    target: CostCurve
    draft: CostCurve | None


def take_luck_out() -> None:
    """Let the children that are started from now on get ggml's work buffer at the same alignment.

    It comes from malloc, and where it starts at a multiple of 64 bytes a prefill of SmolLM2 is 4% faster than at any
    other multiple of 16. From mmap it always starts 16 bytes behind a page (docs/decisions/0007).
    """
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(512 * 1024)  # less than the buffer takes; set, malloc does not adapt it


class EngineProcess:
    """An engine with `options` (those of Engine.load) in a child process."""

    def __init__(self, options: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(options, theirs), daemon=True)
        self._process.start()
        self.curves: Curves | None = self._connection.recv()
        """There where the engine drafts automatically."""

    @property
    def pid(self) -> int:
        """The child's number; 0 once it has ended."""
        return self._process.pid or 0

    def answer(self, prompt: Prompt, params: SamplingParams) -> Answer:
        """One prompt alone."""
        return self.answers([prompt], params).answers[0]

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> Batch:
        """All prompts at once."""
        self._connection.send((list(prompts), params))
        batch = self._connection.recv()
        assert isinstance(batch, Batch)
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join()


@contextmanager
def engines(
    options: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, EngineProcess]]:
    """A process for each of the named settings, all warm."""
    take_luck_out()
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(EngineProcess({**options, **setting})) for name, setting in settings.items()
        }
        for process in processes.values():
            process.answer("Say something.", SamplingParams(max_tokens=16, ignore_eos=True))
        yield processes


def interleaved(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Rounds over all names, every other round backwards: what drifts meets all of them alike."""
    for index in range(rounds):
        for name in names if index % 2 else names[::-1]:
            yield index, name


def _serve(options: dict[str, Any], connection: Connection) -> None:
    parts = build(EngineConfig(**options))
    with Engine(parts) as engine:
        connection.send(_curves(parts.scheduler.costs))
        while True:
            try:
                prompts, params = connection.recv()
            except EOFError:
                return
            connection.send(_answers(engine, prompts, params))


def _curves(costs: StepCosts | None) -> Curves | None:
    return None if costs is None else Curves(costs.target.curve, costs.draft.curve if costs.draft else None)


def _answers(engine: Engine, prompts: list[Prompt], params: SamplingParams) -> Batch:
    tokens: list[list[int]] = [[] for _ in prompts]
    firsts, lasts = [0.0] * len(prompts), [0.0] * len(prompts)
    usages: dict[int, Usage] = {}
    started = time.perf_counter()
    asked = [prompt.laid_out(engine) if isinstance(prompt, Pictured) else prompt for prompt in prompts]
    for output in engine.stream(asked, params):
        if output.error is not None:
            raise output.error
        lasts[output.index] = time.perf_counter()
        if not tokens[output.index]:
            firsts[output.index] = lasts[output.index]
        tokens[output.index].extend(output.token_ids)
        if output.usage is not None:
            usages[output.index] = output.usage
    timings = [
        Timing(first - started, last - first, tuple(own))
        for first, last, own in zip(firsts, lasts, tokens, strict=True)
    ]
    read = [_tokens(engine, prompt) for prompt in prompts]
    return Batch(
        [Answer(*one) for one in zip(timings, [usages[at] for at in range(len(prompts))], read, strict=True)],
        max(lasts) - started,
    )


def _tokens(engine: Engine, prompt: Prompt) -> tuple[int, ...]:
    if isinstance(prompt, Pictured):
        return ()
    if not isinstance(prompt, str):
        return tuple(prompt.tolist())
    return tuple(token for segment in engine.prompt(prompt).segments for token in segment.tokens.tolist())
