"""Deciding a step and learning its result, while so many requests decode; the fake model's time is left out."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.micro.timing import timed_after
from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptLayout
from forerun.core.request import Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import StepPlan, StepResult
from forerun.testing import FakeRunner, FakeVocabulary

_VOCABULARY = FakeVocabulary([bytes([97 + index % 26]) for index in range(50)], end_tokens=())
_ROUNDS = 200
_PROMPT = 16


class _Steps:
    """A scheduler whose requests all decode; each call is one step's share of Python."""

    def __init__(self, running: int) -> None:
        n_ctx = running * (_PROMPT + 2 * _ROUNDS)
        config = SchedulerConfig(
            n_ctx=n_ctx, max_num_seqs=running, n_seq_max=2 * running, max_num_batched_tokens=max(512, 2 * running)
        )
        self._scheduler = Scheduler(config, _VOCABULARY)
        self._runner = FakeRunner(n_ctx, _VOCABULARY.size)
        rng = np.random.default_rng(0)
        for index in range(running):
            prompt = PromptLayout.of_text(rng.integers(0, _VOCABULARY.size, _PROMPT))
            params = SamplingParams(max_tokens=2 * _ROUNDS, ignore_eos=True)
            self._scheduler.add(Request(id=str(index), prompt=prompt, params=params))
        self._plan = self._scheduler.schedule(0.0)
        while len(self._plan.decode) < running:
            self.step(*self.executed()[0])

    def executed(self) -> tuple[tuple[StepPlan, StepResult], dict[str, object]]:
        """What `step` is given: the plan that was decided, carried out."""
        return (self._plan, self._runner.execute(self._plan)), {}

    def step(self, plan: StepPlan, result: StepResult) -> None:
        self._scheduler.update(plan, result)
        self._plan = self._scheduler.schedule(0.0)


@pytest.mark.parametrize("running", [1, 16, 64, 256])
def test_learning_a_result_and_deciding_the_next_step(benchmark: BenchmarkFixture, running: int) -> None:
    steps = _Steps(running)
    timed_after(benchmark, steps.executed, steps.step, rounds=_ROUNDS)
