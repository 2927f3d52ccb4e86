"""The never-slower contract for what many requests have in common, or have not: agents that write the same again and
again with small edits, and requests that share nothing. The model says scripts; speeds are those of measured curves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve
from forerun.core.request import SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import PrefillRows, StepPlan, StepResult
from forerun.testing import FakeRunner, FakeVocabulary
from tests.core.harness import Harness
from tests.core.test_never_slower import CPU_1B5, CPU_135M, GPU, costs

WORDS = FakeVocabulary([bytes([97 + index % 26]) for index in range(500)], end_tokens=())
PROMPT = 20
N_CTX = 8192
CURVES = pytest.mark.parametrize(
    "curve",
    [
        pytest.param(CPU_1B5, id="1.5B-cpu", marks=pytest.mark.slow),
        pytest.param(CPU_135M, id="135M-cpu"),
        pytest.param(GPU, id="gpu"),
    ],
)


class ScriptedRunner(FakeRunner):
    """Answers a prompt that begins with token n with script n."""

    def __init__(self, scripts: list[list[int]], curve: CostCurve) -> None:
        super().__init__(N_CTX, WORDS.size, costs=costs(curve, None))
        self._scripts = scripts
        self._said: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for rows in plan.prefill:
            if rows.position == 0 and isinstance(rows, PrefillRows):
                self._said[rows.sequence_id] = self._scripts[int(rows.tokens[0])]
        return super().execute(plan)

    def _logits(self, sequence_id: int) -> NDArray[np.float32]:
        script = self._said[sequence_id]
        logits = np.zeros(WORDS.size, np.float32)
        at = self.memory.next_position(sequence_id) - PROMPT
        logits[script[min(at, len(script) - 1)]] = 10
        return logits


def simulate(scripts: list[list[int]], curve: CostCurve, *, at_once: int = 1, **options: Any) -> tuple[float, Harness]:
    """Milliseconds until all scripts are said, `at_once` of them together."""
    config = SchedulerConfig(n_ctx=N_CTX, max_num_seqs=at_once, reuse_prefixes=False, **options)
    harness = Harness(config, ScriptedRunner(scripts, curve), WORDS)
    harness.scheduler = Scheduler(config, WORDS, costs=costs(curve, None))
    rng = np.random.default_rng(1)
    for number, script in enumerate(scripts):
        prompt = [number, *rng.integers(0, WORDS.size, PROMPT - 1).tolist()]
        harness.add(str(number), prompt, SamplingParams(max_tokens=len(script)))
    spent = 0.0
    while harness.scheduler.has_work:
        spent += harness.step()[1].elapsed
    for number, script in enumerate(scripts):
        assert harness.tokens(str(number)) == tuple(script)
    return spent * 1e3, harness


def edited(count: int) -> list[list[int]]:
    """The same long answer again and again, each time with three small edits."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, WORDS.size, 400)
    scripts = []
    for _ in range(count):
        for at in rng.integers(0, len(text) - 5, 3).tolist():
            text = np.concatenate([text[:at], rng.integers(0, WORDS.size, 3), text[at + int(rng.integers(0, 5)) :]])
        scripts.append(text.tolist())
    return scripts


def unrelated(count: int) -> list[list[int]]:
    """Answers of frequent and rare words: what was said before ends like this text often enough, and misleads."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, WORDS.size + 1)
    return [rng.choice(WORDS.size, 200, p=weights / weights.sum()).tolist() for _ in range(count)]


@CURVES
def test_an_agent_that_writes_the_same_with_small_edits_is_much_faster(curve: CostCurve) -> None:
    scripts = edited(8)
    plain, _ = simulate(scripts, curve, speculation=0)
    ngram, _ = simulate(scripts, curve, speculation=32, suffix_tokens=0)
    spent, harness = simulate(scripts, curve, speculation=32)
    assert plain / ngram == pytest.approx(1, abs=0.03), "no answer repeats itself"
    copied = curve.predict(1) * 33 / curve.predict(33)  # where all of a block is accepted
    at_best = 8 / (1 + 7 / copied)  # the first answer is nobody's copy
    assert plain / spent >= max(0.97, at_best * 0.7)
    if copied > 1:
        assert harness.usage("7").saved_ms > 0


@CURVES
@pytest.mark.parametrize("at_once", [1, 8])
def test_requests_that_share_nothing_are_not_slowed(curve: CostCurve, at_once: int) -> None:
    scripts = unrelated(16)
    plain, _ = simulate(scripts, curve, speculation=0, at_once=at_once)
    spent, _ = simulate(scripts, curve, speculation=32, at_once=at_once)
    assert plain / spent >= 0.97


@CURVES
def test_streams_that_share_nothing_do_not_pay_for_one_that_does(curve: CostCurve) -> None:
    scripts = edited(2) + unrelated(6)
    plain, before = simulate(scripts, curve, speculation=0, at_once=8)
    spent, harness = simulate(scripts, curve, speculation=32, at_once=8)
    assert plain / spent >= 0.97
    for name in harness.requests:
        assert before.usage(name).decode_ms / harness.usage(name).decode_ms >= 0.96
