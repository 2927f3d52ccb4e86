"""Sampling parameters: what makes no sense is refused by field, before a request exists."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.prompt import PromptLayout
from forerun.core.request import MAX_LOGPROBS, MAX_STOPS, Request, SamplingParams
from forerun.errors import ForerunError, InvalidRequestError

FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))
NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
WHOLE_NUMBERS = ("max_tokens", "top_k", "penalty_last_n", "seed", "logprobs", "speculation")
OPTIONAL = ("max_tokens", "seed", "logprobs", "speculation", "grammar")

OUT_OF_RANGE = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 2**31),
    ("temperature", -0.1),
    ("temperature", 101),
    ("top_k", -1),
    ("top_k", 2**31),
    ("top_p", -0.1),
    ("top_p", 1.01),
    ("min_p", -0.1),
    ("min_p", 1.01),
    ("typical_p", -0.1),
    ("typical_p", 1.01),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("presence_penalty", 101),
    ("frequency_penalty", -101),
    ("penalty_last_n", -2),
    ("seed", -1),
    ("seed", 2**64),
    ("logprobs", -1),
    ("logprobs", MAX_LOGPROBS + 1),
    ("speculation", -1),
    ("speculation", 65),
    ("speculation", 2.0),
    ("speculation", "sometimes"),
    ("stop", ("",)),
    ("stop", ""),
    ("stop", ("a", "")),
    ("stop", "a\udcff"),
    ("stop", tuple("abcdefghijklmnopq"[: MAX_STOPS + 1])),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", -1),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: math.inf}),
    ("logit_bias", {1: 1e9}),
    ("logit_bias", {1: -1e9}),
    ("logit_bias", {1: 10**400}),
]

WRONG_TYPE = [
    ("stop", 5),
    ("stop", b"a"),
    ("stop", None),
    ("stop", ("a", 5)),
    ("stop", ("a", None)),
    ("stop", {"a": 1}),
    ("stop_token_ids", "5"),
    ("stop_token_ids", True),
    ("stop_token_ids", (1, True)),
    ("stop_token_ids", (1.0,)),
    ("stop_token_ids", None),
    ("shown_tokens", None),
    ("shown_tokens", {"1": "<a>"}),
    ("shown_tokens", {True: "<a>"}),
    ("shown_tokens", {1: b"<a>"}),
    ("logit_bias", None),
    ("logit_bias", [(1, 1.0)]),
    ("logit_bias", 5),
    ("logit_bias", {"1": 1.0}),
    ("logit_bias", {"abc": 1.0}),
    ("logit_bias", {1.0: 1.0}),
    ("logit_bias", {True: 1.0}),
    ("logit_bias", {None: 1.0}),
    ("logit_bias", {1: "x"}),
    ("logit_bias", {1: None}),
    ("logit_bias", {1: True}),
    ("ignore_eos", "no"),
    ("ignore_eos", 1),
    ("ignore_eos", None),
    ("grammar", "root ::= x"),
    ("grammar", {"type": "object"}),
]


def refused(name: str, value: object) -> InvalidRequestError:
    params: dict[str, Any] = {name: value}
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**params)
    return caught.value


@pytest.mark.parametrize(("name", "value"), [*OUT_OF_RANGE, *WRONG_TYPE])
def test_a_value_that_makes_no_sense_is_refused_by_field(name: str, value: object) -> None:
    error = refused(name, value)
    assert error.field == name
    assert str(error).startswith(f"{name}: ")


@pytest.mark.parametrize("value", ["1", b"1", [1], (1,), {}, object(), True, False, 1j])
@pytest.mark.parametrize("name", [*NUMBERS, *WHOLE_NUMBERS])
def test_what_is_no_number_is_refused_by_field(name: str, value: object) -> None:
    assert refused(name, value).field == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, -(10**400)])
@pytest.mark.parametrize("name", [*NUMBERS, *WHOLE_NUMBERS])
def test_numbers_without_size_or_of_any_size_are_refused_by_field(name: str, value: object) -> None:
    assert refused(name, value).field == name


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_half_a_number_is_refused_where_whole_ones_belong(name: str) -> None:
    assert refused(name, 1.5).field == refused(name, 1.0).field == name


@pytest.mark.parametrize("name", sorted({*FIELDS} - {*OPTIONAL}))
def test_none_is_refused_where_it_has_no_meaning(name: str) -> None:
    assert refused(name, None).field == name


@pytest.mark.parametrize("name", OPTIONAL)
def test_none_leaves_the_choice_open(name: str) -> None:
    params: dict[str, Any] = {name: None}
    assert getattr(SamplingParams(**params), name) is None


OTHERS = ("stop", "stop_token_ids", "logit_bias", "ignore_eos", "shown_tokens", "adapters", "grammar")


def test_every_field_is_covered_here() -> None:
    assert {*NUMBERS, *WHOLE_NUMBERS, *OTHERS} == {*FIELDS}


def test_a_refusal_names_the_limit_and_the_value() -> None:
    assert str(refused("seed", -1)) == "seed: must lie between 0 and 18446744073709551615, got -1"
    assert str(refused("max_tokens", 0)) == "max_tokens: must lie between 1 and 2147483647, got 0"
    assert str(refused("top_p", 1.5)) == "top_p: must lie between 0 and 1, got 1.5"
    assert "at most 16 stop strings, got 17" in str(refused("stop", tuple("abcdefghijklmnopq")))
    assert "token 7" in str(refused("logit_bias", {7: math.nan}))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(FIELDS), json_like)
def test_whatever_comes_in_it_is_accepted_or_refused_by_field(name: str, value: object) -> None:
    params: dict[str, Any] = {name: value}
    error = None
    try:
        SamplingParams(**params)
    except ForerunError as caught:
        error = caught
    assert error is None or (isinstance(error, InvalidRequestError) and error.field == name)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 100, "top_p": 0, "min_p": 1, "typical_p": 0},
        {"seed": 2**64 - 1, "max_tokens": 1, "logprobs": 0, "speculation": 0},
        {"penalty_last_n": -1, "repetition_penalty": 1e-6, "presence_penalty": -100, "frequency_penalty": 100},
        {"logit_bias": {0: -100, 5: 100.0, 7: -math.inf}},
    ],
)
def test_the_ends_of_every_range_are_legal(params: dict[str, Any]) -> None:
    SamplingParams(**params)


@pytest.mark.parametrize(("speculation", "limit"), [("off", 0), (0, 0), (3, 3), ("auto", 64), (None, 64)], ids=str)
def test_speculation_is_a_word_or_a_limit(speculation: Any, limit: int) -> None:
    assert SamplingParams(speculation=speculation).draft_limit == limit


def test_a_refused_speculation_says_what_there_is() -> None:
    assert str(refused("speculation", "on")) == (
        "speculation: must be a whole number up to 64, 'auto' or 'off', got 'on'"
    )


def test_one_stop_stands_for_a_list_of_one() -> None:
    params: dict[str, Any] = {"stop": "END", "stop_token_ids": 7}
    assert SamplingParams(**params) == SamplingParams(stop=("END",), stop_token_ids=(7,))


def test_changing_what_was_passed_in_changes_no_parameters() -> None:
    bias = {1: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[-5] = math.nan
    assert dict(params.logit_bias) == {1: 1.0}


@pytest.mark.parametrize(
    ("params", "greedy"),
    [
        (SamplingParams(), True),
        (SamplingParams(temperature=0.7, top_k=1), True),
        (SamplingParams(temperature=0.7), False),
    ],
)
def test_no_temperature_or_one_candidate_is_greedy(params: SamplingParams, greedy: bool) -> None:  # noqa: FBT001 - data
    assert params.is_greedy == greedy


def test_a_request_is_a_value() -> None:
    prompt = PromptLayout.of_text([1])
    assert Request(id="a", prompt=prompt, params=SamplingParams()) == Request(
        id="a", prompt=prompt, params=SamplingParams()
    )
