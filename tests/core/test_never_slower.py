"""The never-slower contract, simulated: the FakeRunner takes the time that measured cost curves say.

Real curves (design/llama-facts.md), draft models of every quality, texts that repeat and texts that do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import DraftRequest, Proposal
from forerun.testing import FakeDrafter, FakeRunner, FakeVocabulary
from tests.core.harness import Harness

CPU_1B5 = CostCurve((1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128), (36, 68, 96, 124, 178, 260, 328, 329, 570, 1009, 1767))
CPU_135M = CostCurve((1, 2, 3, 4, 8, 16, 32, 64, 128), (8, 16, 22, 27, 52, 105, 212, 329, 583))
GPU = CostCurve((1, 8, 64, 128), (10, 10.5, 14, 20))
DRAFT_CPU = CostCurve((1, 2, 4, 8, 16, 128), (13, 24, 44, 90, 130, 700))
DRAFT_GPU = CostCurve((1, 8, 128), (2, 2.1, 5))
WORDS = FakeVocabulary([bytes([97 + index % 26]) for index in range(16)], end_tokens=())
N_CTX = 8192
TOKENS = 300
"""An answer's length; a lone copy is longer, so that learning what it is weighs little."""


class BlindDrafter(FakeDrafter):
    """Knows nothing of the bias that makes an answer a copy: copies are for lookups to find."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return super().propose([replace(request, sampling=None) for request in requests])


class TimedHarness(Harness):
    """Notes when each request was answered."""

    finished_ms: dict[str, float]

    def run_timed(self) -> float:
        """Milliseconds until all are answered."""
        spent = 0.0
        self.finished_ms = {}
        while self.scheduler.has_work:
            spent += self.step()[1].elapsed * 1e3
            for name, deltas in self.deltas.items():
                if deltas and deltas[-1].finish_reason is not None:
                    self.finished_ms.setdefault(name, spent)
        return spent


def costs(target: CostCurve, draft: CostCurve | None) -> StepCosts:
    return StepCosts(LiveCosts(target), LiveCosts(draft) if draft else None)


def simulate(
    target: CostCurve,
    draft: CostCurve | None,
    quality: float,
    *,
    speculation: int,
    streams: int,
    copies: bool,
    fixed: bool,
    memory: MemoryKind = DENSE,
) -> tuple[float, TimedHarness]:
    """Milliseconds until all are answered."""
    config = SchedulerConfig(
        n_ctx=N_CTX,
        max_num_seqs=8,
        speculation=speculation,
        draft_n_ctx=N_CTX if draft else 0,
        memory=memory,
        draft_memory=memory,
        min_prefix_tokens=4096,
    )
    drafter = BlindDrafter(N_CTX, WORDS.size, quality, memory) if draft else None
    runner = FakeRunner(N_CTX, WORDS.size, drafter=drafter, costs=costs(target, draft), kind=memory)
    harness = TimedHarness(config, runner, WORDS)
    harness.scheduler = Scheduler(config, WORDS, costs=None if fixed else costs(target, draft))
    rng = np.random.default_rng(3)
    for index in range(streams):
        prompt = [int(token) for token in rng.integers(0, WORDS.size, 30)]
        bias: dict[str, Any] = {"logit_bias": {index: 100.0}} if copies else {}
        harness.add(
            f"r{index}", prompt, SamplingParams(max_tokens=TOKENS * (3 if copies and streams == 1 else 1), **bias)
        )
    spent = harness.run_timed()
    harness.assert_all_right()
    return spent, harness


IN_THE_DEFAULT_RUN = {"1.5B-cpu-0.5", "135M-cpu-lookup-0.0"}
"""The whole grid takes two minutes: it is `slow`."""
CASES = [
    pytest.param(
        target,
        draft,
        quality,
        id=f"{name}-{quality}",
        marks=() if f"{name}-{quality}" in IN_THE_DEFAULT_RUN else pytest.mark.slow,
    )
    for name, target, draft in (
        ("1.5B-cpu", CPU_1B5, DRAFT_CPU),
        ("1.5B-cpu-lookup", CPU_1B5, None),
        ("135M-cpu-lookup", CPU_135M, None),
        ("gpu", GPU, DRAFT_GPU),
    )
    for quality in ((0.0, 0.5, 0.9) if draft else (0.0,))
]


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("target", "draft", "quality"), CASES)
def test_speculation_is_never_slower_than_none(
    target: CostCurve, draft: CostCurve | None, quality: float, *, copies: bool, streams: int
) -> None:
    plain, before = simulate(target, draft, quality, speculation=0, streams=streams, copies=copies, fixed=False)
    spent, harness = simulate(target, draft, quality, speculation=32, streams=streams, copies=copies, fixed=False)
    assert plain / spent >= 0.97
    receipts = sum(harness.usage(name).saved_ms for name in harness.requests)
    earlier = sum(before.finished_ms[name] - harness.finished_ms[name] for name in harness.requests)
    assert receipts == pytest.approx(earlier, rel=0.25, abs=0.03 * plain * streams)


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("target", "draft", "quality"), CASES)
def test_it_is_never_slower_where_a_rejection_costs_a_second_decode(
    target: CostCurve, draft: CostCurve | None, quality: float, *, copies: bool, streams: int
) -> None:
    state = MemoryKind(has_state=True)
    options: dict[str, Any] = {"streams": streams, "copies": copies, "fixed": False, "memory": state}
    plain, _ = simulate(target, draft, quality, speculation=0, **options)
    spent, harness = simulate(target, draft, quality, speculation=32, **options)
    assert plain / spent >= 0.97
    assert not copies or plain / spent > 1.2 or target is not GPU
    assert harness.runner.replayed < harness.runner.rows


@pytest.mark.parametrize(("target", "draft", "quality"), CASES)
@pytest.mark.parametrize("copies", [False, True])
def test_it_is_as_fast_as_the_best_fixed_length(
    target: CostCurve, draft: CostCurve | None, quality: float, *, copies: bool
) -> None:
    spent, _ = simulate(target, draft, quality, speculation=32, streams=1, copies=copies, fixed=False)
    best = min(
        simulate(target, draft, quality, speculation=length, streams=1, copies=copies, fixed=True)[0]
        for length in (0, 1, 2, 4, 8, 32)
    )
    assert spent <= best * 1.05


def test_a_useless_draft_never_catches_up_with_a_long_prompt_in_one_step() -> None:
    config = SchedulerConfig(n_ctx=N_CTX, speculation=32, draft_n_ctx=N_CTX)
    runner = FakeRunner(N_CTX, WORDS.size, drafter=FakeDrafter(N_CTX, WORDS.size, 0.0), costs=costs(GPU, DRAFT_GPU))
    harness = Harness(config, runner, WORDS)
    harness.scheduler = Scheduler(config, WORDS, costs=costs(GPU, DRAFT_GPU))
    rng = np.random.default_rng(0)
    for index, length in enumerate((30, 1500)):  # the first teaches that the draft is useless
        tokens = [int(token) for token in rng.integers(0, WORDS.size, length)]
        harness.add(f"r{index}", tokens, SamplingParams(max_tokens=2000 if index else 60))
        harness.run()
    harness.assert_all_right()
    behind = [request.tokens.size - request.held for plan in harness.plans for request in plan.draft_requests]
    assert max(behind) <= config.prefill_rows_beside_decode


def test_receipts_do_not_count_a_prompt_beside_every_token_it_was_computed_with() -> None:
    """What was saved can never be more than all the tokens would have taken one after another."""
    config = SchedulerConfig(n_ctx=N_CTX, speculation=32, max_num_seqs=8)
    harness = Harness(config, FakeRunner(N_CTX, WORDS.size, costs=costs(CPU_135M, None)), WORDS)
    harness.scheduler = Scheduler(config, WORDS, costs=costs(CPU_135M, None))
    copy = SamplingParams(max_tokens=300, logit_bias={1: 100.0})
    harness.add("copy", [1] * 40, copy)
    for index in range(6):
        harness.add(f"long {index}", [index + 2, *([2, 3, 5, 7] * 200)], SamplingParams(max_tokens=2))
    harness.run()
    alone = 300 * CPU_135M.predict(8)
    assert 0 < harness.usage("copy").saved_ms < alone


def test_receipts_do_not_count_pictures_of_others_as_a_loss() -> None:
    config = SchedulerConfig(n_ctx=N_CTX, speculation=32, max_num_seqs=8, splits_media=True)
    harness = Harness(config, FakeRunner(N_CTX, WORDS.size, costs=costs(CPU_135M, None)), WORDS)
    harness.scheduler = Scheduler(config, WORDS, costs=costs(CPU_135M, None))
    harness.add("copy", [1] * 40, SamplingParams(max_tokens=300, logit_bias={1: 100.0}))
    for index in range(6):
        picture = PromptSegment.media(f"picture {index}", logical_tokens=800, native_positions=30)
        harness.add(f"shows {index}", PromptLayout([picture, PromptSegment.text([2])]), SamplingParams(max_tokens=2))
    harness.run()
    assert 0 < harness.usage("copy").saved_ms < 300 * CPU_135M.predict(8)


def test_filling_a_draft_s_memory_slows_nobody_who_gets_nothing_out_of_it() -> None:
    """One request decodes without drafts while another one's long prompt is to be run through the draft."""

    def milliseconds_a_token(*, with_draft: bool) -> float:
        config = SchedulerConfig(n_ctx=N_CTX, speculation=32, draft_n_ctx=N_CTX if with_draft else 0)
        drafter = FakeDrafter(N_CTX, WORDS.size, 1.0) if with_draft else None
        known = costs(GPU, DRAFT_GPU if with_draft else None)
        harness = Harness(config, FakeRunner(N_CTX, WORDS.size, drafter=drafter, costs=known), WORDS)
        harness.scheduler = Scheduler(config, WORDS, costs=costs(GPU, DRAFT_GPU if with_draft else None))
        tokens = [int(token) for token in np.random.default_rng(0).integers(0, WORDS.size, 4000)]
        harness.add("plain", tokens[:20], SamplingParams(max_tokens=400, speculation="off"))
        harness.add("long", tokens, SamplingParams(max_tokens=300))
        harness.run()
        harness.assert_all_right()
        usage = harness.usage("plain")
        return usage.decode_ms / usage.output_tokens

    assert milliseconds_a_token(with_draft=True) <= milliseconds_a_token(with_draft=False) * 1.03
