"""The runner performs hand-built plans on a real dense model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.core.prompt import PromptSegment
from forerun.core.request import SamplingParams
from forerun.core.step import (
    ClearSequence,
    DraftRequest,
    FailureKind,
    ForkSequence,
    MediaRows,
    PrefillRows,
    StepPlan,
    TruncateSequence,
)
from forerun.native.context import LlamaContext
from forerun.native.model import LlamaModel
from forerun.native.runner import LlamaRunner
from tests.conftest import MakeTinyModel
from tests.model.conftest import MakeContext
from tests.model.driving import DrivenRequest, at, random_tokens
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

Logits = NDArray[np.float32]


def greedy(context: LlamaContext, prompt_seed: int, count: int, prompt_tokens: int = 40) -> list[int]:
    """Greedy output of one request in an empty context, one row at a time."""
    request = DrivenRequest(LlamaRunner(context), 0, random_tokens(prompt_tokens, prompt_seed))
    request.prefill()
    while len(request.output) < count:
        request.decode()
    context.clear_sequence(0)
    return request.output[:count]


def in_turns(counts: Sequence[int]) -> Callable[[int], int]:
    """For steps of any size."""
    left = itertools.cycle(counts)
    return lambda _rows: next(left)


def last_logits(context: LlamaContext) -> Logits:
    row: Logits = context.logits[-1].copy()
    return row


@pytest.mark.parametrize("name", ["dense", "smollm2"])
def test_how_many_threads_compute_a_step_changes_no_logit(
    name: str, request: pytest.FixtureRequest, make_context: MakeContext
) -> None:
    path = request.getfixturevalue(name)
    rows = []
    for counts in ((2,), (1,), (2, 1, 3)):
        context = make_context(path, n_threads=3, n_threads_batch=3)
        runner = LlamaRunner(context, threads=in_turns(counts))
        driven = DrivenRequest(runner, 0, random_tokens(150, 1))
        driven.prefill(70)
        rows.append(last_logits(context))
        while len(driven.output) < 8:
            driven.decode()
            rows.append(last_logits(context))
    one = len(rows) // 3
    for first, second, third in zip(rows[:one], rows[one : 2 * one], rows[2 * one :], strict=True):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, third)


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        *[("dense", cuts) for cuts in ((1,), (64,), (66, 132))],
        ("smollm2", (66, 132)),
        *[pytest.param("smollm2", cuts, marks=pytest.mark.slow) for cuts in ((1,), (64,))],
    ],
)
def test_a_prompt_gives_the_same_logits_whole_and_in_chunks(
    name: str, cuts: tuple[int, ...], request: pytest.FixtureRequest, make_context: MakeContext
) -> None:
    # Chunks of 64 rows or more (or one): llama.cpp's attention takes another path, and rounds otherwise, for fewer.
    context = make_context(request.getfixturevalue(name))
    whole = DrivenRequest(LlamaRunner(context), 0, random_tokens(200))
    whole.prefill()
    expected = last_logits(context)
    context.clear_sequence(0)
    chunked = DrivenRequest(LlamaRunner(context), 0, random_tokens(200))
    chunked.prefill(*cuts)
    np.testing.assert_array_equal(last_logits(context), expected)
    assert chunked.output == whole.output


def test_several_requests_share_a_decode_with_a_prefill(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense)
    expected = [greedy(context, seed, 6) for seed in range(3)]
    runner = LlamaRunner(context)
    requests = [DrivenRequest(runner, seed, random_tokens(40, seed)) for seed in range(3)]
    requests[0].prefill()
    requests[1].prefill(17)
    for step in range(8):
        decoding = [request for request in requests if request.output]
        prefill = (requests[2].prefill_rows(5 * (step + 1)),) if not requests[2].output else ()
        result = runner.execute(
            StepPlan(0.0, decode=tuple(request.decode_row() for request in decoding), prefill=prefill)
        )
        for request in decoding:
            request.commit(result)
        if prefill and prefill[0].sampling is None:
            requests[2].computed += 5
            assert 2 not in result.sequences
        elif prefill:
            requests[2].commit(result)
    while len(requests[2].output) < 6:
        requests[2].decode()
    assert [request.output[:6] for request in requests] == expected


def test_the_time_of_a_step_is_reported(dense: LlamaModel, make_context: MakeContext) -> None:
    request = DrivenRequest(LlamaRunner(make_context(dense)), 0, random_tokens(5))
    result = request.runner.execute(StepPlan(0.0, prefill=(request.prefill_rows(),)))
    assert 0 < result.elapsed < 10


# --- memory operations ---


def test_a_fork_shares_cells_and_goes_on_like_its_source(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense, n_ctx=256)
    expected = greedy(context, 0, 6, prompt_tokens=200)
    runner = LlamaRunner(context)
    source = DrivenRequest(runner, 0, random_tokens(200))
    source.prefill()
    # Six copies of 199 tokens would not fit 256 cells: they share them.
    forks = [DrivenRequest(runner, sequence_id, random_tokens(200)) for sequence_id in range(1, 7)]
    for fork in forks:
        runner.execute(StepPlan(0.0, operations=(ForkSequence(0, fork.sequence_id, at(199)),)))
        fork.computed = 199
        fork.prefill()
    for request in (source, *forks):
        while len(request.output) < 6:
            request.decode()
        assert request.output == expected


def test_a_truncated_sequence_goes_on_from_the_cut(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense)
    expected = greedy(context, 0, 6)
    request = DrivenRequest(LlamaRunner(context), 0, np.append(random_tokens(30), random_tokens(50, seed=9)))
    request.prefill()
    again = DrivenRequest(request.runner, 0, random_tokens(40))
    again.computed = 30
    cut = TruncateSequence(0, at(30))
    result = request.runner.execute(StepPlan(0.0, operations=(cut,), prefill=(again.prefill_rows(),)))
    again.commit(result)
    while len(again.output) < 6:
        again.decode()
    assert again.output == expected


def test_a_cleared_sequence_is_empty(dense: LlamaModel, make_context: MakeContext) -> None:
    request = DrivenRequest(LlamaRunner(make_context(dense)), 3, random_tokens(10))
    request.prefill()
    assert request.runner.context.pos_max(3) == 9
    result = request.runner.execute(StepPlan(0.0, operations=(ClearSequence(3),)))
    assert result.failure is None
    assert request.runner.context.pos_max(3) == -1


# --- verification ---


def test_right_drafts_are_accepted_and_wrong_ones_cut(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense)
    expected = greedy(context, 0, 12)
    request = DrivenRequest(LlamaRunner(context), 0, random_tokens(40))
    request.prefill()
    right, wrong = expected[1:4], (expected[4] + 1, expected[5], expected[6])
    result = request.decode((*right, *wrong))
    assert (result.tokens, result.drafted, result.accepted) == (tuple(expected[1:5]), 6, 3)
    request.assert_memory_is_known()
    while len(request.output) < 12:
        request.decode()
        request.assert_memory_is_known()
    assert request.output == expected


def test_nothing_after_a_stop_token_stays(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense)
    expected = greedy(context, 0, 6)
    params = SamplingParams(stop_token_ids=(expected[2],))
    request = DrivenRequest(LlamaRunner(context), 0, random_tokens(40), params)
    request.prefill()
    result = request.decode(tuple(expected[1:6]))
    assert result.tokens == tuple(expected[1:3])
    request.assert_memory_is_known()


def test_sampling_with_a_seed_is_the_same_with_and_without_drafts(dense: LlamaModel, make_context: MakeContext) -> None:
    params = SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.1, logprobs=2)
    context = make_context(dense)
    plain = DrivenRequest(LlamaRunner(context), 0, random_tokens(40), params)
    plain.prefill()
    for _ in range(8):
        plain.decode()
    context.clear_sequence(0)
    drafted = DrivenRequest(LlamaRunner(context), 0, random_tokens(40), params)
    drafted.prefill()
    result = drafted.decode(tuple(plain.output[1:6]))
    assert result.accepted == 5
    assert result.logprobs is not None
    assert [entry.token for entry in result.logprobs] == plain.output[1:7] == drafted.output[1:]


# --- failures ---


def test_a_full_memory_is_reported_and_left_as_it_was(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense, n_ctx=256)
    runner = LlamaRunner(context)
    first = DrivenRequest(runner, 0, random_tokens(200))
    first.prefill()
    second = DrivenRequest(runner, 1, random_tokens(100, seed=1))
    result = runner.execute(StepPlan(0.0, prefill=(second.prefill_rows(),)))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.NO_ROOM
    assert context.pos_max(1) == -1
    first.decode()
    first.assert_memory_is_known()


def test_an_aborted_step_is_reported_and_the_next_one_runs(dense: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(dense)
    request = DrivenRequest(LlamaRunner(context), 0, random_tokens(40))
    context.request_abort()
    result = request.runner.execute(StepPlan(0.0, prefill=(request.prefill_rows(),)))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.ABORTED
    context.clear_sequence(0)
    request.prefill()
    assert request.output == greedy(make_context(dense), 0, 1)


def test_rows_that_llama_refuses_are_a_failed_step(dense: LlamaModel, make_context: MakeContext) -> None:
    runner = LlamaRunner(make_context(dense))
    with_gap = PrefillRows(0, random_tokens(3), 0), PrefillRows(0, random_tokens(3), 7)
    result = runner.execute(StepPlan(0.0, prefill=with_gap))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.FAILED
    assert "-1" in result.failure.message


def test_a_request_that_bans_everything_fails_by_itself(dense: LlamaModel, make_context: MakeContext) -> None:
    runner = LlamaRunner(make_context(dense))
    nothing_left = SamplingParams(logit_bias=dict.fromkeys(range(dense.vocabulary.size), -np.inf))
    banning = DrivenRequest(runner, 0, random_tokens(5), nothing_left)
    other = DrivenRequest(runner, 1, random_tokens(5))
    result = runner.execute(StepPlan(0.0, prefill=(banning.prefill_rows(), other.prefill_rows())))
    assert result.faults[0].is_own
    assert "no token is left" in result.faults[0].message
    other.commit(result)


def test_logits_that_are_no_numbers_are_the_fault_of_their_rows_alone(
    dense: LlamaModel, make_context: MakeContext
) -> None:
    context = make_context(dense)
    runner = LlamaRunner(context)
    requests = [DrivenRequest(runner, index, random_tokens(5, seed=index)) for index in range(3)]
    for request in requests:
        request.prefill()

    def break_second_row(_: object) -> None:
        context.logits[1, 100] = np.nan

    context.after_decode = break_second_row
    result = runner.execute(StepPlan(0.0, decode=tuple(request.decode_row() for request in requests)))
    assert result.failure is None
    assert result.faults.keys() == {1}
    assert not result.faults[1].is_own
    assert result.sequences.keys() == {0, 2}


def test_after_a_decode_that_failed_memory_is_as_it_was_before(dense: LlamaModel, make_context: MakeContext) -> None:
    runner = LlamaRunner(make_context(dense))
    decoding, prompt = DrivenRequest(runner, 0, random_tokens(20)), DrivenRequest(runner, 1, random_tokens(50, seed=1))
    decoding.prefill()
    prompt.prefill(30)
    runner.context.request_abort()
    more = PrefillRows(1, random_tokens(40, seed=2), 50)
    rows = (decoding.decode_row((5, 6)),)
    result = runner.execute(StepPlan(0.0, operations=(ForkSequence(0, 2, at(10)),), decode=rows, prefill=(more,)))
    assert result.failure is not None
    assert result.kept == {2: 0, 0: 0, 1: 0}
    assert [runner.context.pos_max(key) + 1 for key in range(3)] == [20, 50, 10]
    for request, prompt_tokens in ((decoding, 20), (prompt, 50)):
        request.decode()
        assert request.output == greedy(make_context(dense), request.sequence_id, 2, prompt_tokens)


def test_what_was_evaluated_before_a_step_was_cut_short_is_kept(dense: LlamaModel, make_context: MakeContext) -> None:
    runner = LlamaRunner(make_context(dense))
    request = DrivenRequest(runner, 0, random_tokens(40))
    rows = request.prefill_rows()
    runner.context.clear_sequence(0)
    batch = runner.context.new_batch()
    batch.add_run(rows.tokens[:30], 0, 0, last_output=False)
    runner.context.decode(batch)  # as the first part of a decode that is computed in parts does
    assert runner._kept(rows) == 30
    batch.clear()
    batch.add_run(rows.tokens[30:], 30, 0, last_output=True)
    runner.context.decode(batch)
    assert runner._kept(rows) == 39, "its last row has to be evaluated for the token that comes out"
    assert runner.context.pos_max(0) == 38


@pytest.mark.parametrize("kind", ["lfm2", "mamba"])
def test_of_a_memory_that_cannot_be_cut_nothing_is_known_after_a_failure(
    kind: str, tiny_model: MakeTinyModel, make_context: MakeContext
) -> None:
    model = LlamaModel.load(tiny_model(TinyModel(kind="lfm2", layers=4) if kind == "lfm2" else TinyModel(kind="mamba")))
    request = DrivenRequest(LlamaRunner(make_context(model)), 0, random_tokens(10))
    request.prefill()
    request.runner.context.request_abort()
    result = request.runner.execute(StepPlan(0.0, decode=(request.decode_row(),)))
    assert result.failure is not None
    assert result.kept == {}


def test_media_are_a_failed_step(dense: LlamaModel, make_context: MakeContext) -> None:
    media = PromptSegment.media("image", logical_tokens=4, native_positions=4)
    result = LlamaRunner(make_context(dense)).execute(StepPlan(0.0, prefill=(MediaRows(0, media, 0, 0, 4),)))
    assert result.failure is not None
    assert "media" in result.failure.message


def test_a_fork_of_more_than_the_source_holds_is_a_failed_step(dense: LlamaModel, make_context: MakeContext) -> None:
    request = DrivenRequest(LlamaRunner(make_context(dense)), 0, random_tokens(10))
    request.prefill()
    result = request.runner.execute(StepPlan(0.0, operations=(ForkSequence(0, 1, at(11)),)))
    assert result.failure is not None
    assert "holds 10" in result.failure.message


def test_operations_after_one_that_failed_are_applied_too(dense: LlamaModel, make_context: MakeContext) -> None:
    runner = LlamaRunner(make_context(dense))
    DrivenRequest(runner, 0, random_tokens(20)).prefill()
    impossible = ForkSequence(3, 4, at(10))
    result = runner.execute(StepPlan(0.0, operations=(impossible, ClearSequence(0))))
    assert result.failure is not None
    assert runner.context.pos_max(0) == -1


def test_after_an_operation_that_failed_no_row_is_evaluated_and_nothing_is_kept(
    dense: LlamaModel, make_context: MakeContext
) -> None:
    runner = LlamaRunner(make_context(dense))
    DrivenRequest(runner, 0, random_tokens(20)).prefill()
    rows = DrivenRequest(runner, 1, random_tokens(5)).prefill_rows()
    operations = (ClearSequence(4), ForkSequence(3, 4, at(10)), ForkSequence(0, 2, at(10)))
    result = runner.execute(StepPlan(0.0, operations=operations, prefill=(rows,)))
    assert result.failure is not None
    assert result.kept == {}
    assert [runner.context.pos_max(key) + 1 for key in range(5)] == [20, 0, 10, 0, 0]


@pytest.mark.parametrize("kind", ["lfm2", "mamba"])
def test_a_memory_that_cannot_be_cut_is_a_failed_step(
    kind: str, tiny_model: MakeTinyModel, make_context: MakeContext
) -> None:
    recipe = TinyModel(kind="lfm2", layers=4) if kind == "lfm2" else TinyModel(kind="mamba")
    model = LlamaModel.load(tiny_model(recipe))
    assert model.memory.has_state
    request = DrivenRequest(LlamaRunner(make_context(model)), 0, random_tokens(10))
    request.prefill()
    result = request.runner.execute(StepPlan(0.0, operations=(TruncateSequence(0, at(5)),)))
    assert result.failure is not None
    assert "cannot be cut at position 5" in result.failure.message


def test_plans_that_no_scheduler_makes_are_refused(dense: LlamaModel, make_context: MakeContext) -> None:
    runner = LlamaRunner(make_context(dense, n_batch=16))
    with pytest.raises(ValueError, match="the plan has 17 rows, a batch holds 16"):
        runner.execute(StepPlan(0.0, prefill=(PrefillRows(0, random_tokens(17), 0),)))
    with pytest.raises(ValueError, match="there is no draft model"):
        runner.execute(StepPlan(0.0, draft_requests=(DraftRequest(0, random_tokens(2), 0, 1),)))


def test_closing_twice_is_harmless(dense: LlamaModel, make_context: MakeContext) -> None:
    runner = LlamaRunner(make_context(dense))
    runner.close()
    runner.close()


def test_a_window_that_has_lost_cells_is_not_forked_there(tiny_swa_path: Path, make_context: MakeContext) -> None:
    model = LlamaModel.load(tiny_swa_path)
    runner = LlamaRunner(make_context(model, 1024, 512))
    first = DrivenRequest(runner, 0, random_tokens(20))
    first.prefill()
    DrivenRequest(runner, 1, random_tokens(400, seed=1)).prefill()
    runner.execute(StepPlan(0.0, operations=(ClearSequence(0),)))
    third = DrivenRequest(runner, 2, random_tokens(100, seed=2))
    result = runner.execute(StepPlan(0.0, prefill=(third.prefill_rows(),)))
    lost = result.held_from[1]
    assert lost > 0
    refused = runner.execute(StepPlan(0.0, operations=(ForkSequence(1, 3, at(lost + 1)),)))
    assert refused.failure is not None
    assert "cannot be forked" in refused.failure.message
    assert refused.held_from == {1: lost}, "also a failed step says what is left"
    assert runner.execute(StepPlan(0.0, operations=(ForkSequence(1, 3, at(400)),))).failure is None
