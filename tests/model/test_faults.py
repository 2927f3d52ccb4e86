"""Full memory, failed decodes and cancelled prompts on real models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from forerun import FinishReason, SamplingParams, StepFailedError
from forerun.core.step import FailureKind
from forerun.native.batch import Batch
from forerun.native.context import LlamaContext, NativeStepError
from tests.model.serving import answer, answers, engine_of, serving, some_tokens
from tests.support.greedy_eq import GreedyOracle

pytestmark = pytest.mark.model

ENDLESS = SamplingParams(ignore_eos=True)
POISON = 299  # no prompt has it by chance: see ORDINARY_TOKENS


@contextmanager
def failing_on_poison(failures: list[int]) -> Iterator[None]:
    """Decodes that hold a certain token fail, half of their rows written; `failures`: rows of each."""
    decode = LlamaContext.decode

    def poisoned(context: LlamaContext, batch: Batch) -> None:
        if POISON not in list(batch.native.token[: batch.rows]):
            return decode(context, batch)
        failures.append(batch.rows)
        half = context.new_batch()
        for row in range(batch.rows // 2):
            token, position, sequence_id = batch.native.token[row], batch.native.pos[row], batch.native.seq_id[row][0]
            half.add_run([token], position, sequence_id, last_output=False)
        if half.rows:
            decode(context, half)
        raise NativeStepError(FailureKind.FAILED, "this token is poison")

    with patch.object(LlamaContext, "decode", poisoned):
        yield


@pytest.mark.parametrize("drafts", [False, True])
def test_of_eight_requests_only_the_one_whose_decodes_fail_ends_and_no_other_is_computed_again(
    drafts: bool,  # noqa: FBT001
    tiny_dense_path: Path,
    dense_oracle: GreedyOracle,
) -> None:
    options: dict[str, Any] = {"draft": str(tiny_dense_path), "speculation": 3} if drafts else {}
    prompts = [some_tokens(30 + 7 * index, seed=index) for index in range(8)]
    prompts[5][-1] = POISON
    failures: list[int] = []
    with failing_on_poison(failures), engine_of(tiny_dense_path, options) as engine:
        outputs = sorted(
            engine.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True)), key=lambda output: output.index
        )
        computed = engine.telemetry().computed_tokens
    assert isinstance(outputs[5].error, StepFailedError)
    assert len(failures) <= 6, "eight, four, two, and three times alone"
    assert computed <= sum(map(len, prompts)) + len(prompts[5]), "only the culprit's prompt was computed again"
    for prompt, output in zip(prompts, outputs, strict=True):
        if output.index != 5:
            assert len(output.token_ids) == 20
            dense_oracle.check(prompt, output.token_ids)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_pool_of_one_and_a_half_serves_four_requests_of_four_fifths(
    drafts: bool,  # noqa: FBT001
    tiny_dense_path: Path,
    dense_oracle: GreedyOracle,
) -> None:
    options: dict[str, Any] = {"draft": str(tiny_dense_path), "speculation": 3} if drafts else {}
    prompts = [some_tokens(210, seed=index) for index in range(4)]
    with serving(tiny_dense_path, n_ctx=768, **options) as engine:
        for prompt, output in zip(
            prompts, answers(engine, prompts, SamplingParams(max_tokens=200, ignore_eos=True)), strict=True
        ):
            assert len(output.token_ids) == 200
            dense_oracle.check(prompt, output.token_ids)
        told = engine.telemetry()
    assert told.stats.preemptions > 0
    assert told.computed_tokens <= 1.05 * 4 * 210


def test_case_b2_on_a_full_pool_only_the_request_at_its_context_s_end_is_cut_off(
    tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    prompts = [some_tokens(100, seed=index) for index in range(3)]
    params = [ENDLESS, *[SamplingParams(max_tokens=150, ignore_eos=True)] * 2]
    with serving(tiny_dense_path, n_ctx=512) as engine:
        outputs = answers(engine, prompts, params)
    assert outputs[0].finish_reason is FinishReason.LENGTH
    assert len(outputs[0].token_ids) == 512 + 1 - 100
    assert [len(output.token_ids) for output in outputs[1:]] == [150, 150]
    for prompt, output in zip(prompts, outputs, strict=True):
        dense_oracle.check(prompt, output.token_ids)


def test_a_prompt_that_is_cancelled_within_a_decode_ends_it_and_leaves_what_was_computed_before(
    tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    decodes: list[int] = []
    second_begins = threading.Event()
    aborted = threading.Event()
    decode = LlamaContext.decode

    def watched(context: LlamaContext, batch: Batch) -> None:
        decodes.append(batch.rows)
        if len(decodes) == 2:
            second_begins.set()
            assert aborted.wait(20)
        decode(context, batch)

    prompt = some_tokens(1500, seed=3)
    with engine_of(tiny_dense_path, {"n_ctx": 2048}) as engine, patch.object(LlamaContext, "decode", watched):
        stream = engine.stream(prompt, ENDLESS)
        assert second_begins.wait(20)
        stream.close()
        aborted.set()
        found = engine.cache.lookup(prompt)
        assert decodes == [512, 512], "the second one was aborted, and there was no third"
        assert found.resident_tokens == 512
        other = some_tokens(20, seed=4)
        output = answer(engine, other, SamplingParams(max_tokens=8, ignore_eos=True))
        assert len(output.token_ids) == 8
        dense_oracle.check(other, output.token_ids)
