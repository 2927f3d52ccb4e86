"""Comparing prompts, and finding the longest known prefix of one."""

from __future__ import annotations

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.core import random_tokens
from forerun.core.pool import SequencePool
from forerun.core.prefix import ReusablePrefix
from forerun.core.prompt import PromptLayout

_TOKENS = 100_000
_PREFIXES = 1000


def test_comparing_two_prompts_of_100_000_tokens_that_differ_in_the_last(benchmark: BenchmarkFixture) -> None:
    tokens = random_tokens(np.random.default_rng(0), _TOKENS)
    other = tokens.copy()
    other[-1] += 1
    mine, theirs = PromptLayout.of_text(tokens), PromptLayout.of_text(other)
    assert benchmark(mine.common_prefix, theirs).logical_tokens == _TOKENS - 1


def test_finding_a_prompt_of_100_000_tokens_among_1_000_prefixes_that_share_it(benchmark: BenchmarkFixture) -> None:
    rng = np.random.default_rng(0)
    base = random_tokens(rng, _TOKENS)
    pool = SequencePool(_PREFIXES)
    for _ in range(_PREFIXES):
        sequence = pool.acquire()
        assert sequence is not None
        cut = int(rng.integers(1000, _TOKENS))
        tokens = np.concatenate([base[:cut], random_tokens(rng, 2000)])
        pool.release(sequence, ReusablePrefix(PromptLayout.of_text(tokens)))
    prompt = PromptLayout.of_text(np.concatenate([base[:-1000], random_tokens(rng, 1000)]))
    assert benchmark(pool.find, prompt) is not None
