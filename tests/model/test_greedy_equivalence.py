"""Whatever is cached, drafted or batched beside it, a greedy answer is one that the plain model gives (GREEDY-EQ)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun import Engine, FinishReason, SamplingParams
from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.model.serving import Ids, answer, answers, assert_length, ids_in, serving, some_tokens, usage_of
from tests.support.greedy_eq import GreedyOracle, without_ends
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

DRAFTS = [
    "none",
    "ngram",
    "target",
    "poor",
    *[pytest.param(name, marks=pytest.mark.slow) for name in ("medium", "unrelated")],
]
NOISE = {"target": 0.0, "medium": 0.02, "poor": 0.1}


@pytest.fixture(params=DRAFTS)
def drafting(request: pytest.FixtureRequest, tiny_model: MakeTinyModel) -> dict[str, Any]:
    """Engine options for one way to draft on the tiny dense model."""
    kind: str = request.param
    if kind == "none":
        return {"speculation": 0}
    if kind == "ngram":
        return {"speculation": 6}
    recipe = TinyModel(seed=1) if kind == "unrelated" else TinyModel(noise=NOISE[kind])
    return {"draft": str(tiny_model(recipe)), "speculation": 6}


def assert_drafts_as_meant(outputs: list[Any], drafting: dict[str, Any]) -> None:
    """So that a test of speculation is one."""
    drafted = sum(usage_of(output).drafted_tokens for output in outputs)
    accepted = sum(usage_of(output).accepted_tokens for output in outputs)
    assert accepted <= drafted
    if not drafting["speculation"]:
        assert drafted == 0
    elif "-0-2-0.0-" in drafting.get("draft", ""):
        assert accepted > 0.9 * drafted > 0
    elif "-1-2-" in drafting.get("draft", ""):
        by_model = [usage_of(output).drafters.get("draft", (0, 0)) for output in outputs]
        assert sum(right for _, right in by_model) < 0.2 * sum(count for count, _ in by_model)
    else:
        assert 0 < accepted < drafted


def sixteen_prompts() -> list[Ids]:
    """Of all lengths; some repeat themselves (n-gram drafts), some begin alike, two are equal, one is one token."""
    shared = some_tokens(100, seed=50)
    phrase = some_tokens(7, seed=51)
    alone = [some_tokens(count, seed=count) for count in (1, 2, 17, 64, 65, 130, 300)]
    return [
        *alone,
        *[shared + some_tokens(5 + seed, seed) for seed in range(4)],
        shared[:40] + some_tokens(30, seed=52),
        phrase * 6 + phrase[:3],
        phrase * 3,
        alone[4],
        shared,
    ]


@pytest.mark.parametrize("cache", ["cache", "no cache", "cache, flash attention"])
def test_answers_do_not_depend_on_drafts_cache_or_company(
    drafting: dict[str, Any],
    cache: str,
    tiny_dense_path: Path,
    dense_oracle: GreedyOracle,
    flash_oracle: GreedyOracle,
) -> None:
    prompts = sixteen_prompts()
    outputs = []
    oracle = flash_oracle if "flash" in cache else dense_oracle
    options = {**drafting, "reuse_prefixes": cache != "no cache", "flash_attention": "flash" in cache}
    with serving(tiny_dense_path, **options) as engine:
        for concurrency in (16, 4, 1):
            for start in range(0, 16, concurrency):
                part = prompts[start : start + concurrency]
                found = answers(engine, part, SamplingParams(max_tokens=24))
                for prompt, output in zip(part, found, strict=True):
                    assert_length(output, prompt, 24)
                    oracle.check(prompt, output.token_ids)
                outputs += found
    cached = sum(usage_of(output).cached_tokens for output in outputs)
    assert (cached > 2 * sum(map(len, prompts)) - 200) if cache != "no cache" else cached == 0
    assert_drafts_as_meant(outputs, drafting)


@pytest.mark.parametrize("cache", ["cache", pytest.param("no cache", marks=pytest.mark.slow)])
def test_requests_that_together_outgrow_the_context_all_run_to_its_end(
    drafting: dict[str, Any], cache: str, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    n_ctx = 128
    with serving(
        tiny_dense_path, n_ctx=n_ctx, n_seq_max=8, max_num_seqs=8, reuse_prefixes=cache == "cache", **drafting
    ) as (engine):
        for lengths in ((70,), (127,), (128,), (1, 100), (15, 30, 45, 100), (122, 123, 124, 125, 126, 127, 128)):
            prompts = [some_tokens(count, seed=100 + count) for count in lengths]
            params = SamplingParams(max_tokens=None if len(lengths) > 1 else n_ctx + 1)
            for prompt, output in zip(prompts, answers(engine, prompts, params), strict=True):
                assert_length(output, prompt, n_ctx + 1 - len(prompt))
                dense_oracle.check(prompt, output.token_ids)


@pytest.mark.parametrize(
    ("speculation", "draft_noise"),
    [
        (16, 0.0),
        (5, 0.1),
        *[pytest.param(*slow, marks=pytest.mark.slow) for slow in ((1, 0.0), (5, 0.0), (1, 0.1), (16, 0.1))],
    ],
)
def test_a_draft_context_smaller_than_the_targets_only_ends_the_drafting(
    speculation: int, draft_noise: float, tiny_model: MakeTinyModel, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    draft = str(tiny_model(TinyModel(noise=draft_noise)))
    options: dict[str, Any] = {"draft": draft, "draft_n_ctx": 64, "n_ctx": 256, "speculation": speculation}
    prompts = [some_tokens(count, seed=count) for count in (10, 50, 63, 64, 65, 150)]
    with serving(tiny_dense_path, n_seq_max=32, **options) as engine:
        for _ in range(2):
            for prompt in prompts:
                output = answer(engine, prompt, SamplingParams())
                assert_length(output, prompt, 257 - len(prompt))
                dense_oracle.check(prompt, output.token_ids)
        for prompt, output in zip(prompts, answers(engine, prompts, SamplingParams(max_tokens=60)), strict=True):
            assert_length(output, prompt, 60)
            dense_oracle.check(prompt, output.token_ids)


# --- the real model ---

WORDS = ("Zanzibar", "Mongoose", "Turquoise", "Saxophone", "Cathedral", "Pineapple", "Glacier", "Lantern")
SMOLLM2_DRAFTS: dict[str, dict[str, Any]] = {
    "none": {"speculation": 0},
    "ngram": {"speculation": 4},
    "target": {"draft": "smollm2", "speculation": 4},
}


@pytest.fixture(params=["ngram", *[pytest.param(name, marks=pytest.mark.slow) for name in ("none", "target", "poor")]])
def real_engine(request: pytest.FixtureRequest, smollm2_path: Path, tiny_smollm2_draft_path: Path) -> Iterator[Engine]:
    """SmolLM2; the poor draft is a random model with its vocabulary."""
    poor = {"draft": str(tiny_smollm2_draft_path), "speculation": 4}
    with serving(smollm2_path, **SMOLLM2_DRAFTS.get(request.param, poor)) as engine:
        yield engine


def marker_prompts(engine: Engine) -> list[Ids]:
    question = "The secret word is {}. What is the secret word?"
    return [ids_in(engine.chat_prompt([{"role": "user", "content": question.format(word)}])) for word in WORDS]


def test_the_real_model_answers_each_prompt_with_its_own_word(
    real_engine: Engine, smollm2_oracle: GreedyOracle, smollm2: LlamaModel
) -> None:
    prompts = marker_prompts(real_engine)
    told = 0
    for part in (prompts, prompts[:1]):
        found = answers(real_engine, part, SamplingParams(max_tokens=12))
        for word, prompt, output in zip(WORDS, part, found, strict=False):
            smollm2_oracle.check(prompt, output.token_ids)
            others = [other for other in WORDS if other != word]
            assert not [other for other in others if other in output.text]
            told += word in output.text
            ends = output.token_ids[-1] in smollm2.vocabulary.end_tokens
            assert output.finish_reason is (FinishReason.STOP if ends else FinishReason.LENGTH)
    assert told >= 5  # of 9: the model can do it, so foreign words would show


@pytest.mark.slow
def test_the_real_model_continues_sixteen_texts_at_once_as_it_would_alone(
    smollm2_path: Path, smollm2_oracle: GreedyOracle, smollm2: LlamaModel
) -> None:
    starts = ("The history of {} begins", "A recipe for {}:\n1.", "def {}(items):\n", "Once upon a time in {},")
    subjects = ("Lisbon", "bread", "sorting", "winter")
    prompts = [
        smollm2.vocabulary.tokenize(start.format(subject), add_special=True, parse_special=False).tolist()
        for start in starts
        for subject in subjects
    ]
    with serving(smollm2_path, draft="smollm2", speculation=3) as engine:
        for prompt, output in zip(
            prompts, answers(engine, prompts, SamplingParams(max_tokens=8, ignore_eos=True)), strict=True
        ):
            assert_length(output, prompt, 8)
            smollm2_oracle.check(prompt, output.token_ids, without_ends(smollm2))


def test_the_real_model_runs_to_the_end_of_its_context(
    smollm2_path: Path, smollm2_oracle: GreedyOracle, smollm2: LlamaModel
) -> None:
    prompts = [
        smollm2.vocabulary.tokenize(text, add_special=True, parse_special=False).tolist()
        for text in ("Count: one, two, three, four,", "The alphabet goes a, b, c,", "Rivers of Europe:")
    ]
    with serving(smollm2_path, n_ctx=48, n_seq_max=4, max_num_seqs=3, speculation=5) as engine:
        for prompt, output in zip(prompts, answers(engine, prompts, SamplingParams(ignore_eos=True)), strict=True):
            assert_length(output, prompt, 49 - len(prompt))
            smollm2_oracle.check(prompt, output.token_ids, without_ends(smollm2))
