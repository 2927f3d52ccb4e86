"""Drives a scheduler and a FakeRunner step by step, and compares answers with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptLayout
from forerun.core.request import OutputDelta, Request, SamplingParams, Usage
from forerun.core.scheduler import Scheduler
from forerun.core.step import Drafter, StepPlan, StepResult
from forerun.testing import Answer, FakeRunner, FakeVocabulary, naive_answer

VOCABULARY = FakeVocabulary([bytes([97 + index]) for index in range(20)], end_tokens=())


class Harness:
    """One scheduler on one FakeRunner; integrity is checked after every step."""

    def __init__(
        self,
        config: SchedulerConfig,
        runner: FakeRunner | None = None,
        vocabulary: FakeVocabulary = VOCABULARY,
        lookups: Sequence[Drafter] | None = None,
    ) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.scheduler = Scheduler(config, vocabulary, lookups=lookups)
        self.runner = runner or FakeRunner(config.n_ctx, vocabulary.size)
        self.requests: dict[str, Request] = {}
        self.deltas: dict[str, list[OutputDelta]] = {}
        self.plans: list[StepPlan] = []

    def add(
        self, name: str, tokens: Sequence[int] | PromptLayout, params: SamplingParams | None = None, **options: Any
    ) -> None:
        layout = tokens if isinstance(tokens, PromptLayout) else PromptLayout.of_text(tokens)
        request = Request(id=name, prompt=layout, params=params or SamplingParams(max_tokens=4), **options)
        self.scheduler.add(request)
        self.requests[name], self.deltas[name] = request, []

    def step(self) -> tuple[StepPlan, StepResult]:
        plan = self.scheduler.schedule(float(len(self.plans)))
        result = self.runner.execute(plan)
        for delta in self.scheduler.update(plan, result):
            self.deltas[delta.request_id].append(delta)
        self.plans.append(plan)
        self.scheduler.check_integrity()
        return plan, result

    def run(self, until: Callable[[], bool] = lambda: False, most: int = 5000) -> None:
        """Step until there is nothing to do or `until` holds."""
        for _ in range(most):
            if not self.scheduler.has_work or until():
                return
            self.step()
        raise AssertionError(f"not finished after {most} steps: {self.scheduler!r}")

    def abort(self, name: str) -> None:
        delta = self.scheduler.abort(name, float(len(self.plans)))
        assert delta is not None
        self.deltas[name].append(delta)

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas[name] for token in delta.tokens)

    def answer(self, name: str) -> Answer:
        """What a finished request gave."""
        last = self.deltas[name][-1]
        assert last.finish_reason is not None, f"{name} has not finished"
        return Answer(self.tokens(name), "".join(delta.text for delta in self.deltas[name]), last.finish_reason)

    def usage(self, name: str) -> Usage:
        usage = self.deltas[name][-1].usage
        assert usage is not None
        return usage

    def expected(self, name: str) -> Answer:
        request = self.requests[name]
        return naive_answer(
            request.prompt,
            request.params,
            self.vocabulary,
            self.config.n_ctx,
            self.config.adapters,
            request.constraint,
        )

    def assert_all_right(self) -> None:
        for name in self.requests:
            assert self.answer(name) == self.expected(name), name
