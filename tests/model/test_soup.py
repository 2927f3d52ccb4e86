"""Random engines, random prompts, random limits, random cancels: every answer is still the plain model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun import Output, SamplingParams
from tests.conftest import MakeTinyModel
from tests.model.serving import Ids, ids_of, serving, some_tokens
from tests.support.greedy_eq import GreedyOracle
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

Random = np.random.Generator


def some_engine(random: Random, tiny_model: MakeTinyModel) -> dict[str, Any]:
    """Tight limits of every kind."""
    rows = int(random.choice([1, 2, 3, 7, 16, 40, 512]))
    running = int(random.integers(1, min(rows, 8) + 1))
    n_ctx = int(random.choice([33, 64, 100, 300, 700]))
    options: dict[str, Any] = {
        "n_ctx": n_ctx,
        "max_num_batched_tokens": rows,
        "n_ubatch": int(random.choice([1, 16, 512])),
        "max_num_seqs": running,
        "n_seq_max": running + int(random.integers(0, 12)),
        "reuse_prefixes": bool(random.random() < 0.8),
        "speculation": int(random.choice([0, 1, 3, 16])),
    }
    if random.random() < 0.7:
        options["draft"] = str(tiny_model(TinyModel(noise=float(random.choice([0.0, 0.02, 0.1])))))
        options["draft_n_ctx"] = int(random.choice([8, 33, 64, n_ctx, 2 * n_ctx]))
    return options


def some_prompts(random: Random, n_ctx: int) -> list[Ids]:
    """They share prefixes of one long text, and some repeat themselves."""
    book = some_tokens(n_ctx, seed=int(random.integers(3)))
    prompts = []
    for _ in range(int(random.integers(1, 12))):
        kept = book[: int(random.integers(0, n_ctx))]
        phrase = some_tokens(int(random.integers(1, 6)), seed=int(random.integers(50)))
        prompts.append((kept + phrase * int(random.integers(1, 6)))[:n_ctx])
    return prompts


def one_soup(seed: int, model: Path, tiny_model: MakeTinyModel, oracle: GreedyOracle) -> int:
    random = np.random.default_rng(seed)
    options = some_engine(random, tiny_model)
    tokens = 0
    with serving(model, **options) as engine:
        for _ in range(3):
            prompts = some_prompts(random, options["n_ctx"])
            params = [
                SamplingParams(max_tokens=int(random.integers(1, 50)), speculation=int(random.integers(0, 17)))
                for _ in prompts
            ]
            pieces: dict[int, list[Output]] = {index: [] for index in range(len(prompts))}
            cancelled = random.random() < 0.3
            with engine.stream(prompts, params) as stream:
                for count, piece in enumerate(stream):
                    assert piece.error is None, (options, piece.error)
                    pieces[piece.index].append(piece)
                    if cancelled and count > 4 * len(prompts):
                        break
            for prompt, own, one in zip(prompts, pieces.values(), params, strict=True):
                answer = ids_of(own)
                tokens += len(answer)
                if answer:
                    oracle.check(prompt, answer)
                if not cancelled:
                    assert one.max_tokens is not None
                    assert len(answer) == min(one.max_tokens, options["n_ctx"] + 1 - len(prompt)), options
    return tokens


@pytest.mark.parametrize("seed", range(6))
def test_any_engine_gives_the_plain_models_answers(
    seed: int, tiny_dense_path: Path, tiny_model: MakeTinyModel, dense_oracle: GreedyOracle
) -> None:
    assert one_soup(seed, tiny_dense_path, tiny_model, dense_oracle) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_engines_give_the_plain_models_answers(
    tiny_dense_path: Path, tiny_model: MakeTinyModel, dense_oracle: GreedyOracle
) -> None:
    for seed in range(100, 300):
        assert one_soup(seed, tiny_dense_path, tiny_model, dense_oracle) > 0
