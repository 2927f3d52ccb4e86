"""Memories that cannot be cut anywhere: sliding windows, hybrid and recurrent models. Nothing may change an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun import SamplingParams
from forerun.errors import InvalidConfigError
from forerun.native.batch import Batch
from forerun.native.context import LlamaContext
from forerun.native.model import LlamaModel
from forerun.native.rollback import Rollback
from tests.conftest import MakeTinyModel
from tests.model.conftest import MakeContext
from tests.model.driving import random_tokens
from tests.model.serving import Ids, answer, answers, assert_length, serving, some_tokens, usage_of
from tests.support.greedy_eq import GreedyOracle
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

KINDS = ["sliding window", "hybrid", "recurrent"]
RECIPES: dict[str, dict[str, Any]] = {
    "sliding window": {"kind": "gemma3", "layers": 6},
    "hybrid": {"kind": "lfm2", "layers": 4},
    "recurrent": {"kind": "mamba"},
}
WINDOW = 64
DRAFTS = ["none", "ngram", "target", "poor", pytest.param("medium", marks=pytest.mark.slow)]
NOISE = {"target": 0.0, "medium": 0.02, "poor": 0.1}


def load(kind: str, tiny_model: MakeTinyModel, noise: float = 0.0) -> Path:
    return tiny_model(TinyModel(**RECIPES[kind], noise=noise))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model(kind: str, tiny_model: MakeTinyModel) -> Iterator[LlamaModel]:
    model = LlamaModel.load(load(kind, tiny_model))
    yield model
    model.close()


@pytest.fixture(scope="module")
def oracle(model: LlamaModel) -> Iterator[GreedyOracle]:
    oracle = GreedyOracle(model, n_ctx=2048)
    yield oracle
    oracle.close()


@pytest.fixture(params=DRAFTS)
def drafting(request: pytest.FixtureRequest, kind: str, tiny_model: MakeTinyModel) -> dict[str, Any]:
    """Engine options for one way to draft; draft models are of the target's kind."""
    name: str = request.param
    if name in ("none", "ngram"):
        return {"speculation": 0 if name == "none" else 6}
    return {"draft": str(load(kind, tiny_model, NOISE[name])), "speculation": 5}


def eight_prompts() -> list[Ids]:
    """Shorter and much longer than the window; some repeat themselves, some begin alike, two are equal."""
    shared, phrase = some_tokens(150, seed=50), some_tokens(9, seed=51)
    return [
        some_tokens(1, seed=1),
        some_tokens(30, seed=2),
        some_tokens(300, seed=3),
        shared + some_tokens(20, seed=4),
        shared + some_tokens(90, seed=5),
        shared,
        phrase * 12 + phrase[:3],
        some_tokens(300, seed=3),
    ]


def test_answers_do_not_depend_on_drafts_or_company(
    drafting: dict[str, Any], model: LlamaModel, oracle: GreedyOracle
) -> None:
    prompts, drafted, accepted = eight_prompts(), 0, 0
    with serving(model.path, **drafting) as engine:
        for concurrency in (8, 1):
            for start in range(0, 8, concurrency):
                part = prompts[start : start + concurrency]
                found = answers(engine, part, SamplingParams(max_tokens=24))
                for prompt, output in zip(part, found, strict=True):
                    assert_length(output, prompt, 24)
                    oracle.check(prompt, output.token_ids)
                    drafted += usage_of(output).drafted_tokens
                    accepted += usage_of(output).accepted_tokens
    assert accepted <= drafted
    assert bool(drafted) == bool(drafting["speculation"])


def test_answers_far_beyond_the_window_are_right_with_a_draft_that_is_mostly_wrong(
    kind: str, model: LlamaModel, oracle: GreedyOracle, tiny_model: MakeTinyModel
) -> None:
    """Case S1: rejected drafts must leave nothing behind once a window has filled."""
    prompt = some_tokens(40, seed=7)
    with serving(model.path, draft=str(load(kind, tiny_model, noise=0.1)), speculation=4) as engine:
        output = answer(engine, prompt, SamplingParams(max_tokens=3 * WINDOW))
    assert_length(output, prompt, 3 * WINDOW)
    oracle.check(prompt, output.token_ids)
    assert usage_of(output).drafted_tokens > 2 * usage_of(output).accepted_tokens > 0


def test_all_run_to_the_end_of_the_context(drafting: dict[str, Any], model: LlamaModel, oracle: GreedyOracle) -> None:
    with serving(model.path, n_ctx=160, max_num_seqs=4, **drafting) as engine:
        for lengths in ((100,), (160,), (20, 60, 120)):
            prompts = [some_tokens(count, seed=100 + count) for count in lengths]
            for prompt, output in zip(prompts, answers(engine, prompts, SamplingParams()), strict=True):
                assert_length(output, prompt, 161 - len(prompt))
                oracle.check(prompt, output.token_ids)


def test_a_second_turn_finds_the_whole_first_one(
    drafting: dict[str, Any], model: LlamaModel, oracle: GreedyOracle
) -> None:
    prompt = some_tokens(200, seed=8)
    with serving(model.path, **drafting) as engine:
        first = answer(engine, prompt, SamplingParams(max_tokens=20))
        longer = [*prompt, *first.token_ids, *some_tokens(30, seed=9)]
        second = answer(engine, longer, SamplingParams(max_tokens=20))
        assert usage_of(second).cached_tokens == 200 + 20 - 1
        oracle.check(longer, second.token_ids)


def test_a_first_turn_can_be_continued_more_than_once(model: LlamaModel, oracle: GreedyOracle) -> None:
    prompt = some_tokens(200, seed=8)
    with serving(model.path) as engine:
        first = answer(engine, prompt, SamplingParams(max_tokens=20))
        for index in range(3):
            longer = [*prompt, *first.token_ids, *some_tokens(30, seed=60 + index)]
            output = answer(engine, longer, SamplingParams(max_tokens=8))
            assert usage_of(output).cached_tokens in (219, 220)
            oracle.check(longer, output.token_ids)


def test_prompts_that_arrive_together_compute_what_they_share_once(model: LlamaModel, oracle: GreedyOracle) -> None:
    """Also where the memory can be forked at its end alone: the first one's chunk ends where the others branch off."""
    shared = some_tokens(300, seed=10)
    prompts = [shared + some_tokens(20 + index, seed=11 + index) for index in range(4)]
    with serving(model.path) as engine:
        found = answers(engine, prompts, SamplingParams(max_tokens=8))
    assert sorted(usage_of(output).cached_tokens for output in found) == [0, 300, 300, 300]
    for prompt, output in zip(prompts, found, strict=True):
        oracle.check(prompt, output.token_ids)


def test_a_prompt_that_branches_off_is_right(model: LlamaModel, oracle: GreedyOracle) -> None:
    """A window is cut there if its cells are still there; a state is computed anew."""
    prompt = some_tokens(400, seed=20)
    with serving(model.path) as engine:
        answer(engine, prompt, SamplingParams(max_tokens=100))
        for index, shared in enumerate((390, 200, 20)):
            branch = prompt[:shared] + some_tokens(30, seed=21 + index)
            output = answer(engine, branch, SamplingParams(max_tokens=16))
            oracle.check(branch, output.token_ids)
            assert usage_of(output).cached_tokens == (0 if model.memory.has_state else shared)


@pytest.mark.parametrize("kind", ["recurrent"], indirect=True)
def test_a_dense_model_and_a_recurrent_draft_share_the_ids_that_both_have(
    model: LlamaModel, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    prompts = eight_prompts()
    with serving(tiny_dense_path, draft=str(model.path), speculation=3) as engine:
        for prompt, output in zip(prompts, answers(engine, prompts, SamplingParams(max_tokens=24)), strict=True):
            dense_oracle.check(prompt, output.token_ids)


def test_ids_that_rollback_needs_are_counted(tiny_recurrent_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="n_seq_max: is 250; with speculation"):
        serving(tiny_recurrent_path, n_seq_max=250, speculation=4).__enter__()


# --- the pieces ---


def fed(context: LlamaContext, tokens: Any, position: int, sequence_id: int) -> Any:
    """Logits after each token."""
    batch = Batch(context.n_batch)
    batch.clear()
    for index, token in enumerate(np.asarray(tokens).tolist()):
        batch.add_row(token, position + index, sequence_id)
    context.decode(batch)
    return context.logits.copy()


@pytest.mark.parametrize("kind", ["hybrid", "recurrent"], indirect=True)
def test_going_back_gives_the_logits_of_a_run_that_never_left(model: LlamaModel, make_context: MakeContext) -> None:
    tokens = random_tokens(60)
    context, plain = make_context(model), make_context(model)
    rollback = Rollback(context, first_id=6, ids=2)
    fed(context, tokens[:50], 0, 0)
    rollback.remember(0)
    fed(context, random_tokens(5, seed=1), 50, 0)
    rollback.go_back(0)
    assert context.pos_max(0) == 49
    assert context.pos_max(6) == context.pos_max(7) == -1
    fed(plain, tokens[:50], 0, 0)
    np.testing.assert_array_equal(fed(context, tokens[50:], 50, 0), fed(plain, tokens[50:], 50, 0))


def test_a_window_whose_cells_were_taken_is_not_cut(tiny_swa_path: Path, make_context: MakeContext) -> None:
    """llama.cpp gives cells behind a window to others even in a full-size memory, and would cut all the same."""
    model = LlamaModel.load(tiny_swa_path)
    context = make_context(model, 1024, 512)
    fed(context, random_tokens(20), 0, 0)
    fed(context, random_tokens(400, seed=1), 0, 1)
    context.clear_sequence(0)
    fed(context, random_tokens(100, seed=2), 0, 2)
    first = context.pos_min(1)
    assert first > 0
    assert context.held_from() == {1: first}
    closest = first + WINDOW - 1
    assert not context.truncate_sequence(1, closest - 1)
    assert context.pos_max(1) == 399
    assert context.truncate_sequence(1, closest)
    tokens = random_tokens(400, seed=1)[: closest + 1]
    after_cut = fed(context, tokens[-1:], closest, 1)
    context.clear_sequence(3)
    assert np.abs(after_cut[-1] - fed(context, tokens, 0, 3)[-1]).max() < 0.2, "rounding; a cut too far is off by 30"
    context.close()
    model.close()
