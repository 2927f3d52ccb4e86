"""Choosing a token from a row of logits, by size of the vocabulary and parameters."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.core.request import SamplingParams
from forerun.core.sampling import SamplingContext, sample

_SMOLLM2, _QWEN = 49_152, 151_936
_KINDS = {
    "greedy": SamplingParams(),
    "greedy, end tokens banned": SamplingParams(ignore_eos=True),
    "temperature": SamplingParams(temperature=0.8, seed=1),
    "temperature, top-k 40, top-p 0.95": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1),
    "repetition penalty": SamplingParams(repetition_penalty=1.1),
}


@pytest.mark.parametrize("vocabulary", [_SMOLLM2, _QWEN])
@pytest.mark.parametrize("kind", _KINDS)
def test_choosing_a_token(benchmark: BenchmarkFixture, kind: str, vocabulary: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, vocabulary).astype(np.float32)
    history = TokenHistory(PromptLayout.of_text(rng.integers(0, vocabulary, 500)))
    context = SamplingContext(_KINDS[kind], 1, frozenset({2}), history)
    assert 0 <= benchmark(sample, logits, context) < vocabulary
