"""The GREEDY-EQ oracle itself: it accepts what a model says and catches what it would not say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from forerun.core.prompt import Tokens
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel
from forerun.native.runner import LlamaRunner
from tests.model.driving import DrivenRequest, random_tokens
from tests.support.greedy_eq import GreedyOracle

pytestmark = pytest.mark.model

TOKENS = 24


@pytest.fixture(scope="module", params=["dense", "smollm2"])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def model(name: str, request: pytest.FixtureRequest) -> LlamaModel:
    loaded: LlamaModel = request.getfixturevalue(name)
    return loaded


@pytest.fixture(scope="module")
def oracle(name: str, request: pytest.FixtureRequest) -> GreedyOracle:
    made: GreedyOracle = request.getfixturevalue(f"{name}_oracle")
    return made


@pytest.fixture(scope="module")
def context(model: LlamaModel) -> Iterator[LlamaContext]:
    context = LlamaContext(model, ContextParams(n_ctx=512, n_batch=256, n_ubatch=256, n_threads=1, n_threads_batch=1))
    yield context
    context.close()


@pytest.fixture(scope="module")
def prompts(model: LlamaModel) -> list[Tokens]:
    return [prompt_of(model, seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def answers(context: LlamaContext, prompts: list[Tokens]) -> list[list[int]]:
    """What the model says to each prompt, one token at a time."""
    return [said(context, prompt) for prompt in prompts]


def prompt_of(model: LlamaModel, seed: int) -> Tokens:
    if "SmolLM2" not in model.path.name:
        return random_tokens(40, seed)
    text = ("The history of the city begins with", "To bake a simple loaf of bread, you need to")[seed]
    return model.vocabulary.tokenize(text, add_special=True, parse_special=False)


def said(context: LlamaContext, prompt: Tokens) -> list[int]:
    request = DrivenRequest(LlamaRunner(context), 0, prompt)
    request.prefill()
    while len(request.output) < TOKENS:
        request.decode()
    context.clear_sequence(0)
    return request.output


def test_what_the_model_says_is_accepted(oracle: GreedyOracle, prompts: list[Tokens], answers: list[list[int]]) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        oracle.check(prompt, answer)


def test_a_wrong_token_in_the_middle_is_caught(
    oracle: GreedyOracle, prompts: list[Tokens], answers: list[list[int]]
) -> None:
    prompt, answer = prompts[0], answers[0]
    rows = oracle.rows(prompt, answer)
    for index in (0, 11, 23):
        below = rows[index].max() - rows[index]
        likeliest_wrong = int(np.argmin(np.where(below > oracle.noise, below, np.inf)))
        wrong = [*answer[:index], likeliest_wrong, *answer[index + 1 :]]
        assert oracle.faults(prompt, wrong)[0].index == index
        with pytest.raises(AssertionError, match=f"token {likeliest_wrong} at {index} is"):
            oracle.check(prompt, wrong)


def test_a_token_of_another_answer_is_caught_where_it_lands_or_right_behind_it(
    oracle: GreedyOracle, prompts: list[Tokens], answers: list[list[int]]
) -> None:
    own, foreign = answers
    for index in range(0, len(own) - 1, 4):
        if own[index] != foreign[index]:
            mixed = [*own[:index], foreign[index], *own[index + 1 :]]
            assert oracle.faults(prompts[0], mixed)[0].index in (index, index + 1)  # "the" instead of "a" may do
    assert oracle.faults(prompts[0], foreign)


def test_a_lost_or_a_doubled_token_is_caught(
    oracle: GreedyOracle, prompts: list[Tokens], answers: list[list[int]]
) -> None:
    answer = answers[0]
    for changed in (answer[:10] + answer[11:], answer[:10] + answer[9:]):
        assert oracle.faults(prompts[0], changed)


def test_a_token_missing_from_the_prompt_is_caught(
    oracle: GreedyOracle, prompts: list[Tokens], answers: list[list[int]]
) -> None:
    assert oracle.faults(prompts[0][:-1], answers[0])


def test_few_tokens_of_the_vocabulary_lie_within_the_noise(
    oracle: GreedyOracle, prompts: list[Tokens], answers: list[list[int]]
) -> None:
    rows = oracle.rows(prompts[0], answers[0])
    acceptable = (rows >= rows.max(axis=1, keepdims=True) - oracle.noise).sum(axis=1)
    assert oracle.noise > 0
    assert acceptable.mean() < 3


def test_the_likeliest_token_is_no_answer_where_it_is_banned(dense_oracle: GreedyOracle, dense: LlamaModel) -> None:
    prompt = prompt_of(dense, 0)
    best, second = np.argsort(dense_oracle.rows(prompt, [0])[0])[[-1, -2]].tolist()
    dense_oracle.check(prompt, [second], lambda row, _known: row.__setitem__(best, -np.inf))
    assert dense_oracle.faults(prompt, [best], lambda row, _known: row.__setitem__(best, -np.inf))
