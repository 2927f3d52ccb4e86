"""Models and contexts on one thread, small enough to run quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forerun.core.prompt import Tokens
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.model.driving import random_tokens
from tests.model.segment_bench import Bench
from tests.support.greedy_eq import GreedyOracle
from tests.support.tiny_models import TinyModel

MakeContext = Callable[..., LlamaContext]


def long_probes() -> list[Tokens]:
    """For answers to prompts of up to 3,000 tokens."""
    return [random_tokens(count, seed=count) for count in (100, 300, 1500, 3000)]


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(smollm2_path)
    yield model
    model.close()


@pytest.fixture(scope="session")
def dense(tiny_dense_path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(tiny_dense_path)
    yield model
    model.close()


@pytest.fixture(scope="session")
def smollm2_oracle(smollm2: LlamaModel) -> Iterator[GreedyOracle]:
    oracle = GreedyOracle(smollm2)
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def dense_oracle(dense: LlamaModel) -> Iterator[GreedyOracle]:
    oracle = GreedyOracle(dense, probes=long_probes())
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def flash_oracle(dense: LlamaModel) -> Iterator[GreedyOracle]:
    oracle = GreedyOracle(dense, probes=long_probes(), flash_attention=True)
    yield oracle
    oracle.close()


@pytest.fixture
def make_context() -> Iterator[MakeContext]:
    """Makes contexts that are closed at the end of the test."""
    with ExitStack() as made:

        def make(model: LlamaModel, n_ctx: int = 512, n_batch: int = 256, **options: Any) -> LlamaContext:
            options = {"n_ubatch": n_batch, "n_seq_max": 8, "n_threads": 1, "n_threads_batch": 1} | options
            context = LlamaContext(model, ContextParams(n_ctx=n_ctx, n_batch=n_batch, **options))
            made.callback(context.close)
            return context

        yield make


@pytest.fixture(scope="session")
def load(tiny_model: MakeTinyModel) -> Iterator[Any]:
    """Tiny models by kind, loaded once."""
    loaded: dict[TinyModel, LlamaModel] = {}

    def get(recipe: TinyModel, *, with_mtp: bool = False) -> LlamaModel:
        if recipe not in loaded:
            loaded[recipe] = LlamaModel.load(tiny_model(recipe), with_mtp=with_mtp)
        return loaded[recipe]

    yield get
    for model in loaded.values():
        model.close()


@pytest.fixture
def make_bench() -> Iterator[Any]:
    """Makes segment benches that are closed at the end of the test."""
    made: list[Bench] = []

    def make(*args: Any, **options: Any) -> Bench:
        made.append(Bench(*args, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()
