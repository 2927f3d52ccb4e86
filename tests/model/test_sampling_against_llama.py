"""core/sampling.py chooses from the same candidates, with the same probabilities, as llama.cpp's sampler chain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.core.request import SamplingParams
from forerun.core.sampling import SamplingContext, distribution
from forerun.native.sampling import NativeSamplerChain

pytestmark = pytest.mark.model

SMALL_VOCABULARY = 300
LARGE_VOCABULARY = 20_000
CASES = 400

Logits = NDArray[np.float32]


def random_logits(rng: np.random.Generator, size: int) -> Logits:
    """Rows of several shapes: flat, peaked, with ties, with banned tokens."""
    logits = rng.normal(0, rng.choice([0.3, 3, 10]), size).astype(np.float32)
    shape = rng.integers(4)
    if shape == 1:
        logits = np.round(logits)
    if shape == 2:
        logits[rng.integers(0, size, size // 3)] = -np.inf
    if shape == 3:
        logits[rng.integers(size)] += 15
    return logits


def random_params(rng: np.random.Generator, size: int) -> SamplingParams:
    def sometimes(value: float, otherwise: float) -> float:
        return float(value) if rng.random() < 0.5 else otherwise

    biased = rng.integers(0, size, int(rng.integers(0, 5))).tolist()
    return SamplingParams(
        temperature=float(rng.choice([0.2, 0.7, 1.0, 1.7])),
        top_k=int(sometimes(int(rng.integers(1, 60)), 0)),
        top_p=sometimes(rng.random(), 1.0),
        min_p=sometimes(rng.random() ** 3, 0.0),
        typical_p=sometimes(rng.random(), 1.0) if rng.random() < 0.5 else 1.0,
        repetition_penalty=sometimes(rng.uniform(0.8, 2), 1.0),
        presence_penalty=sometimes(rng.uniform(-1, 2), 0.0),
        frequency_penalty=sometimes(rng.uniform(-1, 2), 0.0),
        penalty_last_n=int(rng.choice([-1, 0, 1, 5, 64])),
        logit_bias={token: float(rng.normal(0, 5)) for token in biased},
    )


def history_of(rng: np.random.Generator, size: int) -> TokenHistory:
    tokens = rng.integers(0, size, int(rng.integers(1, 100)), dtype=np.int32)
    return TokenHistory(PromptLayout.of_text(tokens))


def cases(size: int, count: int) -> Iterator[tuple[Logits, SamplingParams, TokenHistory]]:
    for seed in range(count):
        rng = np.random.default_rng([size, seed])
        logits, params, history = random_logits(rng, size), random_params(rng, size), history_of(rng, size)
        if params.typical_p == 1 or not underflows(logits):
            yield logits, params, history


def underflows(logits: Logits) -> bool:
    """Whether a probability is zero in single precision: llama.cpp's typical sampler then compares NaN."""
    return bool(np.exp(logits - logits.max() - 30).min() == 0)


def assert_same_distribution(logits: Logits, params: SamplingParams, history: TokenHistory) -> None:
    context = SamplingContext(params, 0, frozenset(), history)
    before = logits.copy()
    found = distribution(logits, context)
    ids, probabilities = found.ids, found.probabilities
    native_ids, native_probabilities = NativeSamplerChain(params, logits.size, history.tokens).candidates(logits)
    np.testing.assert_array_equal(logits, before)
    ours, theirs = np.zeros(logits.size), np.zeros(logits.size)
    ours[ids] = probabilities
    theirs[native_ids] = native_probabilities
    differences = f"{params}: {ids.size} candidates, {native_ids.size} in llama.cpp"
    # llama.cpp adds up probabilities in single precision: a few of thousands of tokens may lie across a cut.
    rounding = 1e-3 if logits.size == LARGE_VOCABULARY else 1e-5
    # Of tokens of equal logits at a cut, either may stay: then the sorted probabilities agree.
    distance = min(np.abs(ours - theirs).sum(), np.abs(np.sort(ours) - np.sort(theirs)).sum())
    assert distance < rounding, differences


def test_small_vocabularies_give_the_candidates_and_probabilities_of_llama_cpp() -> None:
    for logits, params, history in cases(SMALL_VOCABULARY, CASES):
        assert_same_distribution(logits, params, history)


def test_large_vocabularies_give_the_candidates_and_probabilities_of_llama_cpp() -> None:
    for logits, params, history in cases(LARGE_VOCABULARY, CASES // 10):
        assert_same_distribution(logits, params, history)


@pytest.mark.parametrize("typical_p", [0.0, 0.3, 0.999])
def test_typical_ignores_tokens_that_are_impossible(typical_p: float) -> None:
    rng = np.random.default_rng(0)
    possible = rng.normal(0, 3, SMALL_VOCABULARY).astype(np.float32)
    logits = np.full(3 * SMALL_VOCABULARY, -np.inf, np.float32)
    logits[::3] = possible
    context = SamplingContext(
        SamplingParams(temperature=1.0, typical_p=typical_p), 0, frozenset(), TokenHistory(PromptLayout.of_text([0]))
    )
    alone = distribution(possible, context)
    among_impossible = distribution(logits, context)
    np.testing.assert_array_equal(among_impossible.ids, 3 * alone.ids)
    np.testing.assert_allclose(among_impossible.probabilities, alone.probabilities, rtol=1e-5)


def test_a_temperature_next_to_zero_takes_the_likeliest() -> None:
    logits = np.random.default_rng(0).normal(0, 3, SMALL_VOCABULARY).astype(np.float32)
    history = TokenHistory(PromptLayout.of_text([0]))
    for temperature in (1e-10, 1e-50, 5e-324):
        context = SamplingContext(SamplingParams(temperature=temperature), 0, frozenset(), history)
        found = distribution(logits, context)
        assert found.probabilities[found.ids == logits.argmax()] == 1.0
