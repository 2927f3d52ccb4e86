"""The GREEDY-EQ oracle itself: it accepts what a model says and catches what it would not say."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.prompt import Tokens
from forerun.native.context import LlamaContext
from forerun.native.model import LlamaModel
from forerun.native.runner import LlamaRunner
from tests.model.conftest import MakeContext
from tests.model.driving import DrivenRequest, random_tokens
from tests.support.greedy_eq import GreedyOracle

pytestmark = pytest.mark.model

MODELS = pytest.mark.parametrize("name", ["dense", "smollm2"])


@pytest.fixture
def model(name: str, request: pytest.FixtureRequest) -> LlamaModel:
    loaded: LlamaModel = request.getfixturevalue(name)
    return loaded


@pytest.fixture
def oracle(name: str, request: pytest.FixtureRequest) -> GreedyOracle:
    made: GreedyOracle = request.getfixturevalue(f"{name}_oracle")
    return made


def prompt_of(model: LlamaModel, seed: int) -> Tokens:
    if "SmolLM2" not in model.path.name:
        return random_tokens(40, seed)
    text = ("The history of the city begins with", "To bake a simple loaf of bread, you need to")[seed]
    return model.vocabulary.tokenize(text, add_special=True, parse_special=False)


def said(context: LlamaContext, prompt: Tokens, count: int = 24) -> list[int]:
    """A greedy answer, one token at a time."""
    request = DrivenRequest(LlamaRunner(context), 0, prompt)
    request.prefill()
    while len(request.output) < count:
        request.decode()
    context.clear_sequence(0)
    return request.output


@MODELS
def test_what_the_model_says_is_accepted(oracle: GreedyOracle, model: LlamaModel, make_context: MakeContext) -> None:
    context = make_context(model)
    for seed in (0, 1):
        prompt = prompt_of(model, seed)
        oracle.check(prompt, said(context, prompt))


@MODELS
def test_a_wrong_token_in_the_middle_is_caught(
    oracle: GreedyOracle, model: LlamaModel, make_context: MakeContext
) -> None:
    prompt = prompt_of(model, 0)
    answer = said(make_context(model), prompt)
    rows = oracle.rows(prompt, answer)
    for index in (0, 11, 23):
        below = rows[index].max() - rows[index]
        likeliest_wrong = int(np.argmin(np.where(below > oracle.noise, below, np.inf)))
        wrong = [*answer[:index], likeliest_wrong, *answer[index + 1 :]]
        assert oracle.faults(prompt, wrong)[0].index == index
        with pytest.raises(AssertionError, match=f"token {likeliest_wrong} at {index} is"):
            oracle.check(prompt, wrong)


@MODELS
def test_a_token_of_another_answer_is_caught_where_it_lands_or_right_behind_it(
    oracle: GreedyOracle, model: LlamaModel, make_context: MakeContext
) -> None:
    context = make_context(model)
    prompts = [prompt_of(model, seed) for seed in (0, 1)]
    own, foreign = (said(context, prompt) for prompt in prompts)
    for index in range(0, len(own) - 1, 4):
        if own[index] != foreign[index]:
            mixed = [*own[:index], foreign[index], *own[index + 1 :]]
            assert oracle.faults(prompts[0], mixed)[0].index in (index, index + 1)  # "the" instead of "a" may do
    assert oracle.faults(prompts[0], foreign)


@MODELS
def test_a_lost_or_a_doubled_token_is_caught(
    oracle: GreedyOracle, model: LlamaModel, make_context: MakeContext
) -> None:
    prompt = prompt_of(model, 0)
    answer = said(make_context(model), prompt)
    for changed in (answer[:10] + answer[11:], answer[:10] + answer[9:]):
        assert oracle.faults(prompt, changed)


@MODELS
def test_a_token_missing_from_the_prompt_is_caught(
    oracle: GreedyOracle, model: LlamaModel, make_context: MakeContext
) -> None:
    prompt = prompt_of(model, 0)
    answer = said(make_context(model), prompt)
    assert oracle.faults(prompt[:-1], answer)


@MODELS
def test_few_tokens_of_the_vocabulary_lie_within_the_noise(
    oracle: GreedyOracle, model: LlamaModel, make_context: MakeContext
) -> None:
    prompt = prompt_of(model, 0)
    rows = oracle.rows(prompt, said(make_context(model), prompt))
    acceptable = (rows >= rows.max(axis=1, keepdims=True) - oracle.noise).sum(axis=1)
    assert oracle.noise > 0
    assert acceptable.mean() < 3


def test_the_likeliest_token_is_no_answer_where_it_is_banned(dense_oracle: GreedyOracle, dense: LlamaModel) -> None:
    prompt = prompt_of(dense, 0)
    best, second = np.argsort(dense_oracle.rows(prompt, [0])[0])[[-1, -2]].tolist()
    dense_oracle.check(prompt, [second], lambda row, _known: row.__setitem__(best, -np.inf))
    assert dense_oracle.faults(prompt, [best], lambda row, _known: row.__setitem__(best, -np.inf))
