"""A real model under a soak: answers are compared with what each prompt gets alone, up to near ties."""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import logging
import random
import string
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.prompt import PromptLayout, as_tokens
from forerun.core.request import Request, SamplingParams, TokenLogprobs
from forerun.core.scheduler import Scheduler
from forerun.core.step import changed_sequence
from forerun.engine.parts import EngineParts, TextVocabulary
from forerun.testing.faults import SeededFaults
from forerun.testing.faulty_calls import FaultyCalls
from forerun.testing.faulty_runner import FaultyRunner
from forerun.testing.soak.subject import Course, SoakError, Subject

if TYPE_CHECKING:
    from forerun.native.runner import LlamaRunner

_TEXTS = (argparse, collections, inspect, json, logging, random, string, tempfile, threading)
"""Modules of the standard library whose documentation is to be continued."""
_LENGTHS = (30, 110, 330)
"""Tokens of a text that make a prompt: one prompt is the beginning of the next."""
_ANSWER = 32
_TIE = 2.0
"""Two tokens whose log probabilities are this close may change places with the shape of a batch, so an answer is
compared up to there. On SmolLM2 a token moves by 0.94 against the best one (tests/support/greedy_eq.py), in each of two
runs."""


@dataclass(frozen=True, slots=True)
class _Alone:
    """What a prompt gets alone."""

    prompt: PromptLayout
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]

    def could_be(self, index: int, token: int) -> bool:
        """Whether another token is about as likely at an index of the answer."""
        there = self.logprobs[index]
        return any(token == other and there.logprob - likely <= _TIE for other, likely in there.top)


class _AnswersAlone:
    """Implements soak.subject.Answers by what prompts got alone."""

    def __init__(self) -> None:
        self.ties = 0
        self.of: dict[str, _Alone] = {}
        """By request."""

    def check(self, course: Course) -> None:
        alone, tokens = self.of.pop(course.request.id), course.tokens
        for index, (token, expected) in enumerate(zip(tokens, alone.tokens, strict=False)):
            if token == expected:
                continue
            if not alone.could_be(index, token):
                there, usage = alone.logprobs[index], course.deltas[-1].usage
                raise SoakError(
                    f"{course.request.id} ({usage}) got {tokens}, alone it gets {alone.tokens}: token {index} is "
                    f"{expected} with {there.logprob:.2f}, of {there.top}"
                )
            self.ties += 1
            return
        wanted = min(course.request.params.max_tokens or _ANSWER, len(alone.tokens))
        if course.is_whole and len(tokens) != wanted:
            raise SoakError(f"{course.request.id} got {len(tokens)} tokens, alone it gets {wanted}")


class _Requests:
    def __init__(self, alone: Sequence[_Alone], answers: _AnswersAlone) -> None:
        self._alone = alone
        self._answers = answers

    def draw(self, source: random.Random, name: str, arrival: float) -> Request:
        alone = source.choice(self._alone)
        self._answers.of[name] = alone
        return Request(
            id=name,
            prompt=alone.prompt,
            params=SamplingParams(
                max_tokens=source.choice([1, 8, _ANSWER]), speculation=source.choice([None, None, 0])
            ),
            arrival=arrival,
            tenant=source.choice(["", "", "x"]),
            priority=source.choice([0, 0, 0, 1]),
            reuses_cache=source.random() < 0.9,
            reports_progress=True,
        )


def real_subject(
    model: str, seed: int, rate: float = 0.01, *, draft: str | None = None, breaks_calls: bool = False
) -> Subject:
    """A model with too little memory for what is asked of it. Raises ModelError.

    `breaks_calls`: faults are in native calls instead of steps.
    """
    from forerun.compose import build
    from forerun.engine_config import EngineConfig
    from forerun.native.runner import LlamaRunner

    folder = tempfile.TemporaryDirectory(prefix="forerun-soak-")
    config = EngineConfig(
        model=model,
        draft=draft,
        n_ctx=900,
        max_num_seqs=6,
        n_seq_max=20,
        max_num_batched_tokens=256,
        speculation=4,
        cache_ram=48 * 2**20,
        cache_dir=folder.name,
        cache_disk=256 * 2**20,
    )
    parts = build(config)
    runner = parts.runner
    assert isinstance(runner, LlamaRunner)
    alone = _ask_alone(parts)
    answers, faults = _AnswersAlone(), SeededFaults(seed, rate)
    scheduler = parts.scheduler

    def close() -> None:
        parts.runner.close()
        parts.dispose()
        folder.cleanup()

    return Subject(
        name=parts.model_name,
        scheduler=scheduler,
        runner=(FaultyCalls if breaks_calls else FaultyRunner)(runner, faults, scheduler.request_of),
        faults=faults,
        answers=answers,
        draw=_Requests(alone, answers).draw,
        check_memory=lambda: _check_memory(scheduler, runner),
        clock=time.monotonic,
        close=close,
    )


def _ask_alone(parts: EngineParts) -> list[_Alone]:
    """What each prompt gets with nobody beside it, nothing reused and nothing drafted."""
    params = SamplingParams(max_tokens=_ANSWER, logprobs=5, speculation=0)
    return [_alone(parts, prompt, params) for prompt in _prompts(parts.vocabulary)]


def _alone(parts: EngineParts, prompt: PromptLayout, params: SamplingParams) -> _Alone:
    scheduler, runner = parts.scheduler, parts.runner
    scheduler.add(Request(id="alone", prompt=prompt, params=params, reuses_cache=False))
    deltas = []
    while scheduler.has_work:
        plan = scheduler.schedule(time.monotonic())
        deltas += scheduler.update(plan, runner.execute(plan))
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    return _Alone(prompt, tokens, tuple(entry for delta in deltas for entry in delta.logprobs or ()))


def _prompts(vocabulary: TextVocabulary) -> list[PromptLayout]:
    prompts: list[PromptLayout] = []
    for module in _TEXTS:
        text = inspect.getdoc(module) or module.__name__
        source = inspect.getsource(module)
        tokens = vocabulary.tokenize(f"{text}\n{source[:4000]}", add_special=True, parse_special=False)
        prompts += [PromptLayout.of_text(as_tokens(tokens[:length])) for length in _LENGTHS]
    return prompts


def _check_memory(scheduler: Scheduler, runner: LlamaRunner) -> None:
    pool = scheduler.pool
    unknown = {changed_sequence(operation) for operation in pool.pending_operations} | pool.quarantined
    for sequence_id in set(range(scheduler.config.n_seq_max)) - unknown:
        held, known = runner.context.pos_max(sequence_id) + 1, pool.target_cells.held(sequence_id)
        if held != known:
            raise SoakError(f"sequence {sequence_id} holds {held} positions, the bookkeeping says {known}")
        if runner.drafter is None:
            continue
        held, known = runner.drafter.held(sequence_id), pool.draft_cells.held(sequence_id)
        if held != known:
            raise SoakError(f"the draft's sequence {sequence_id} holds {held} tokens, the bookkeeping says {known}")
