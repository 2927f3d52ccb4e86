"""Cancelling takes effect within the step that goes on, in every phase, and what was computed stays."""

from __future__ import annotations

import threading
from dataclasses import replace

from forerun import SamplingParams
from forerun.compose import Engine
from forerun.core.step import FailureKind, StepFailure, StepPlan, StepResult
from forerun.engine.front_end import on_a_thread
from forerun.testing import FakeRunner
from tests.engine.support import fake_parts

TEN = SamplingParams(max_tokens=10, ignore_eos=True)


class CuttableRunner(FakeRunner):
    """Its steps of many rows go on until they are cut short, as a native decode is; those of few end at once."""

    def __init__(self, n_ctx: int) -> None:
        super().__init__(n_ctx, faults=self._cut)
        self.is_stepping = threading.Event()
        self.interrupted = threading.Event()
        self.cut = 0
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return super().execute(plan)

    def _cut(self, plan: StepPlan) -> StepFailure | None:
        if sum(rows.tokens.size for rows in plan.prefill if hasattr(rows, "tokens")) < 100:
            return None
        self.is_stepping.set()
        assert self.interrupted.wait(20), "nobody cut the step short"
        self.interrupted.clear()
        self.cut += 1
        return StepFailure(FailureKind.ABORTED, "cut short")


def engine_of(runner: CuttableRunner) -> Engine:
    return Engine(on_a_thread(replace(fake_parts(runner, n_ctx=2000), interrupt=runner.interrupted.set)))


def test_a_long_chunk_of_a_prompt_that_nobody_wants_any_more_is_cut_short_and_what_it_did_stays() -> None:
    runner = CuttableRunner(2000)
    with engine_of(runner) as engine:
        stream = engine.stream("ab" * 200, TEN)
        assert runner.is_stepping.wait(20)
        stream.close()
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert runner.cut == 1
        assert engine.cache.lookup("ab" * 200).resident_tokens == 200, "half of it was evaluated, and is a prefix"
        (whole,) = engine.generate("ba", TEN)
        assert len(whole.token_ids) == 10


def test_a_step_is_cut_short_once_the_last_of_its_requests_is_cancelled() -> None:
    runner = CuttableRunner(2000)
    with engine_of(runner) as engine:
        both = engine.generate(["ab" * 100, "ba" * 100], TEN)
        assert runner.is_stepping.wait(20)
        first, second = both._assembly.open_ids
        engine.abort([first])
        assert not runner.interrupted.is_set()
        engine.abort([second])
        assert engine.stats().running == 0
        assert runner.cut == 1


def test_a_step_that_is_cut_short_too_late_for_whom_it_was_meant_is_done_again() -> None:
    runner = CuttableRunner(2000)
    with engine_of(runner) as engine:
        runner.interrupted.set()  # as if it had been meant for the step before
        runner.faults = lambda plan: runner._cut(plan) if not runner.cut else None
        (whole,) = engine.generate("ab" * 200, TEN)
        assert runner.cut == 1
        assert len(whole.token_ids) == 10
