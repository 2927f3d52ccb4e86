"""Copying what a sequence holds out of llama.cpp's memory and back: 512 tokens of SmolLM2, 11.8 MB."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.core import random_tokens
from benchmarks.micro.timing import timed_after
from forerun.models.resolve import resolve_model
from forerun.native.batch import Batch
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel

_TOKENS = 512
_ROUNDS = 50


@pytest.fixture(scope="module")
def context() -> Iterator[LlamaContext]:
    """Sequence 0 holds a segment's tokens."""
    model = LlamaModel.load(resolve_model("smollm2"))
    params = ContextParams(n_ctx=4096, n_batch=_TOKENS, n_ubatch=_TOKENS, n_seq_max=4, n_threads=2, n_threads_batch=2)
    context = LlamaContext(model, params)
    batch = Batch(_TOKENS)
    batch.add_run(random_tokens(np.random.default_rng(0), _TOKENS) % 40_000, 0, 0, last_output=True)
    context.decode(batch)
    yield context
    context.close()
    model.close()


def test_copying_a_segment_out(benchmark: BenchmarkFixture, context: LlamaContext) -> None:
    state = np.empty(context.state_size(0), np.uint8)
    benchmark(context.get_sequence_state, 0, state)


def test_copying_a_segment_back(benchmark: BenchmarkFixture, context: LlamaContext) -> None:
    state = np.empty(context.state_size(0), np.uint8)
    context.get_sequence_state(0, state)

    timed_after(
        benchmark, lambda: context.clear_sequence(1), lambda: context.set_sequence_state(1, state), rounds=_ROUNDS
    )


def test_sharing_its_cells_with_another_sequence(benchmark: BenchmarkFixture, context: LlamaContext) -> None:
    timed_after(benchmark, lambda: context.clear_sequence(2), lambda: context.copy_sequence(0, 2), rounds=_ROUNDS)
