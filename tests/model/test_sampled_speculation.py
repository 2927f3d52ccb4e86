"""Cases S11 and S6: drafts shift no distribution, hide no penalty, and report the model's own log probabilities."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from forerun import Engine, Output, SamplingParams
from tests.core.statistics import assert_same_source
from tests.model.serving import Ids, answer, answers, serving, some_tokens, usage_of

pytestmark = pytest.mark.model

SAMPLES = 1200
LENGTH = 4
FEW = some_tokens(24, seed=11)
"""Bias leaves these tokens to the tiny model, temperature makes them about equally likely: a flat distribution that can
be counted."""
PROMPT = [*FEW[:8], *FEW[:4]]
DRAFT_TOKENS = 3


def sampled(seed: int | None, *, is_on: bool) -> SamplingParams:
    bias = dict.fromkeys(FEW, 40.0)
    return SamplingParams(
        max_tokens=LENGTH,
        temperature=3.0,
        top_p=0.999,  # of the distribution before temperature flattens it
        seed=seed,
        logit_bias=bias,
        speculation=None if is_on else 0,
        ignore_eos=True,
    )


def positions(outputs: list[Output]) -> list[Counter[int]]:
    """How often each token came at each position."""
    return [Counter(output.token_ids[position] for output in outputs) for position in range(LENGTH)]


@pytest.fixture(scope="module")
def plain(tiny_dense_path: Path) -> list[Counter[int]]:
    """Counts without speculation, from seeds that no other test here uses."""
    with serving(tiny_dense_path) as engine:
        params = [sampled(10**6 + seed, is_on=False) for seed in range(SAMPLES)]
        return positions(answers(engine, [PROMPT] * SAMPLES, params))


@pytest.mark.parametrize(
    "way",
    [
        "draft model, by rejection",
        *[pytest.param(way, marks=pytest.mark.slow) for way in ("draft model, by the race", "lookup")],
    ],
)
def test_speculation_shifts_no_distribution(
    way: str, plain: list[Counter[int]], tiny_dense_path: Path, tiny_medium_draft_path: Path
) -> None:
    drafts: dict[str, Any] = {} if way == "lookup" else {"draft": str(tiny_medium_draft_path)}
    verification = "rejection" if way.endswith("rejection") else "auto"
    seeds = [None if way.endswith("rejection") else seed for seed in range(SAMPLES)]
    numbers = itertools.count(2 * 10**6)
    with (
        patch("forerun.engine.intake.secrets.randbits", lambda _bits: next(numbers)),
        serving(tiny_dense_path, speculation=DRAFT_TOKENS, verification=verification, **drafts) as engine,
    ):
        found = answers(engine, [PROMPT] * SAMPLES, [sampled(seed, is_on=True) for seed in seeds])
    usages = [usage_of(output) for output in found]
    drafted, accepted = sum(usage.drafted_tokens for usage in usages), sum(usage.accepted_tokens for usage in usages)
    assert drafted > SAMPLES / 10
    assert 0 < accepted < drafted
    for off, on in zip(plain, positions(found), strict=True):
        assert_same_source(off, on)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalties_count_accepted_tokens(
    temperature: float, tiny_dense_path: Path, tiny_medium_draft_path: Path
) -> None:
    prompts = [some_tokens(20, seed) for seed in range(6)]
    with serving(
        tiny_dense_path, draft=str(tiny_medium_draft_path), speculation=DRAFT_TOKENS, reuse_prefixes=False
    ) as engine:
        for prompt in prompts:
            params = SamplingParams(
                max_tokens=40, temperature=temperature, seed=5, frequency_penalty=1.5, logit_bias={prompt[0]: 4.0}
            )
            both = [answer(engine, prompt, replace(params, speculation=speculation)) for speculation in (None, 0)]
            assert both[0].token_ids == both[1].token_ids
            assert usage_of(both[0]).accepted_tokens > 0


@pytest.fixture(params=["draft = target", "poor draft", "lookup"])
def drafting(request: pytest.FixtureRequest, tiny_dense_path: Path, tiny_poor_draft_path: Path) -> Iterator[Engine]:
    drafts = {"draft = target": tiny_dense_path, "poor draft": tiny_poor_draft_path}
    draft = drafts.get(request.param)
    options: dict[str, Any] = {"draft": str(draft)} if draft else {}
    with serving(tiny_dense_path, speculation=8, reuse_prefixes=False, **options) as engine:
        yield engine


def test_log_probabilities_of_drafted_tokens_are_the_model_s(drafting: Engine) -> None:
    prompt: Ids = some_tokens(12, seed=3) * 3
    whole = answer(drafting, prompt, SamplingParams(max_tokens=40))
    text = whole.text
    for stop in ((), (text[len(text) // 2 :][:6],)):
        on, off = (
            answer(drafting, prompt, SamplingParams(max_tokens=40, logprobs=3, stop=stop, speculation=speculation))
            for speculation in (None, 0)
        )
        assert usage_of(on).drafted_tokens > 0
        assert on.token_ids == off.token_ids
        assert on.logprobs is not None
        assert off.logprobs is not None
        assert [entry.token for entry in on.logprobs] == list(on.token_ids)
        for mine, its in zip(on.logprobs, off.logprobs, strict=True):
            assert mine.logprob == pytest.approx(its.logprob, abs=0.05)
            assert mine.logprob < 0
            assert [value for _, value in mine.top] == pytest.approx([value for _, value in its.top], abs=0.05)
        spelled = drafting.tokenizer.bytes_of([entry.token for entry in on.logprobs]).decode("utf-8", "ignore")
        assert spelled.startswith(on.text)
        if stop:
            assert stop[0] in spelled
            last = drafting.tokenizer.bytes_of([entry.token for entry in on.logprobs[:-1]]).decode("utf-8", "ignore")
            assert stop[0] not in last
        else:
            assert spelled == on.text
