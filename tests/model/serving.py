"""Engines on real models, and what to ask of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from forerun import Engine, FinishReason, Output, PromptLayout, SamplingParams, Usage
from forerun.core.step import FailureKind, StepFailure, StepPlan, StepResult
from forerun.native.runner import LlamaRunner
from tests.support.tiny_models import ORDINARY_TOKENS

Ids = list[int]


@contextmanager
def serving(model: Path, **options: Any) -> Iterator[Engine]:
    """An engine on one thread that checks its bookkeeping whenever it is idle.

    It must be alive and idle at the end, and no step may have failed: the engine rebuilds requests after a failed step
    so well that answers alone would not show a fault in its memory operations.
    """
    failures: list[StepFailure] = []
    with recording(failures), engine_of(model, options) as engine:
        yield engine
    assert failures == [], [failure.message for failure in failures]


@contextmanager
def recording(failures: list[StepFailure]) -> Iterator[None]:
    """Adds the failure of every step that fails."""
    execute = LlamaRunner.execute

    def recorded(runner: LlamaRunner, plan: StepPlan) -> StepResult:
        result = execute(runner, plan)
        if result.failure is not None and result.failure.kind is not FailureKind.ABORTED:  # a stream was closed
            failures.append(result.failure)
        return result

    with patch.object(LlamaRunner, "execute", recorded):
        yield


@contextmanager
def engine_of(model: Path, options: dict[str, Any]) -> Iterator[Engine]:
    """Like `serving`, for tests in which steps fail."""
    settings: dict[str, Any] = {"n_threads": 1, "n_ctx": 2048, "checks_integrity": True} | options
    with Engine.load(str(model), **settings) as engine:
        yield engine
        assert_idle(engine)


def assert_idle(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert engine.is_alive, engine.health


def some_tokens(count: int, seed: int) -> Ids:
    """Tokens of text, known to all test models."""
    tokens: Ids = np.random.default_rng(seed).integers(*ORDINARY_TOKENS, count).tolist()
    return tokens


def ids_in(layout: PromptLayout) -> Ids:
    """The tokens of a text prompt."""
    return [int(token) for segment in layout.segments for token in segment.tokens]


def answers(engine: Engine, prompts: Sequence[Ids], params: SamplingParams | Sequence[SamplingParams]) -> list[Output]:
    """Whole answers to prompts of one call, in their order."""
    found = sorted(engine.generate(prompts, params), key=lambda output: output.index)
    assert [output.index for output in found] == list(range(len(prompts)))
    assert [output.error for output in found] == [None] * len(prompts)
    return found


def answer(engine: Engine, prompt: Ids, params: SamplingParams) -> Output:
    return answers(engine, [prompt], params)[0]


def streamed(engine: Engine, prompt: Ids | str, params: SamplingParams) -> list[Output]:
    """The pieces of one answer."""
    pieces = list(engine.stream(prompt, params))
    assert [piece.finish_reason is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    return pieces


def text_of(pieces: Sequence[Output]) -> str:
    return "".join(piece.text for piece in pieces)


def ids_of(pieces: Sequence[Output]) -> Ids:
    return [token for piece in pieces for token in piece.token_ids]


def usage_of(output: Output) -> Usage:
    assert output.usage is not None
    return output.usage


def assert_length(output: Output, prompt: Ids, count: int) -> None:
    """The answer has `count` tokens, says so, and ended for that reason."""
    usage = usage_of(output)
    assert output.finish_reason is FinishReason.LENGTH
    assert (len(output.token_ids), usage.output_tokens, usage.prompt_tokens) == (count, count, len(prompt))
