"""Vectors of texts, compared with what numpy makes of the vectors of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp

from forerun.core.prompt import Tokens, as_tokens
from forerun.errors import ModelLoadError
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.embedding import LlamaEmbedder, Vectors
from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.support.tiny_models import SMALL_VOCABULARY, Kind, Pooling, TinyModel

pytestmark = pytest.mark.model

CASES: list[tuple[Kind, Pooling]] = [("bert", "mean"), ("bert", "cls"), ("llama", "last"), ("llama", "mean")]
TEXTS = [as_tokens(np.random.default_rng(size).integers(20, SMALL_VOCABULARY, size)) for size in (1, 7, 40, 3)]


@contextmanager
def embedder(path: Path, n_ctx: int = 128, max_inputs: int = 8) -> Iterator[LlamaEmbedder]:
    model = LlamaModel.load(path)
    one = LlamaEmbedder(model, n_ctx=n_ctx, max_inputs=max_inputs, n_threads=1)
    yield one
    one.close()
    model.close()


def token_vectors(path: Path, tokens: Tokens) -> Vectors:
    """What the model makes of each token of a text, shape (tokens, dimensions): a file that pools nothing."""
    model = LlamaModel.load(path)
    size = len(tokens)
    params = ContextParams(n_ctx=64, n_batch=64, n_ubatch=64, n_seq_max=1, n_threads=1, n_threads_batch=1, embeds=True)
    context = LlamaContext(model, params)
    batch = context.new_batch()
    batch.add_run(tokens, 0, 0, last_output=False)
    batch.want_all()
    compute = llama_cpp.llama_decode if llama_cpp.llama_get_memory(context.handle) else llama_cpp.llama_encode
    assert compute(context.handle, batch.native) == 0
    width = llama_cpp.llama_model_n_embd_out(model.handle)
    rows = [llama_cpp.llama_get_embeddings_ith(context.handle, row) for row in range(size)]
    vectors = np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])
    context.close()
    model.close()
    return vectors


def pooled(vectors: Vectors, pooling: Pooling) -> Vectors:
    whole = {"mean": vectors.mean(axis=0), "cls": vectors[0], "last": vectors[-1]}[pooling]
    return np.asarray(whole / np.linalg.norm(whole))


@pytest.mark.parametrize(("kind", "pooling"), CASES)
def test_a_vector_is_the_pooled_and_normalised_vectors_of_the_tokens(
    tiny_model: MakeTinyModel, kind: Kind, pooling: Pooling
) -> None:
    with embedder(tiny_model(TinyModel(kind, pooling=pooling))) as one:
        vectors = one.embed(TEXTS)
        assert one.pooling == pooling
    plain = tiny_model(TinyModel(kind, pooling="none"))
    for tokens, vector in zip(TEXTS, vectors, strict=True):
        assert vector == pytest.approx(pooled(token_vectors(plain, tokens), pooling), abs=2e-3)
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("kind", "pooling"), CASES)
def test_a_text_has_the_same_vector_alone_and_among_others_and_again(
    tiny_model: MakeTinyModel, kind: Kind, pooling: Pooling
) -> None:
    with embedder(tiny_model(TinyModel(kind, pooling=pooling))) as one:
        together = one.embed(TEXTS)
        alone = np.concatenate([one.embed([tokens]) for tokens in TEXTS])
        again = one.embed(TEXTS)
    assert together == pytest.approx(alone, abs=2e-3)
    assert np.array_equal(together, again)


def test_an_encoder_sees_what_comes_after_a_token(tiny_model: MakeTinyModel) -> None:
    with embedder(tiny_model(TinyModel("bert", pooling="cls"))) as one:
        first, second = one.embed([as_tokens([100, 200, 300]), as_tokens([100, 200, 400])])
    assert np.abs(first - second).max() > 0.01


def test_what_fits_no_batch_is_refused_before_native_code_sees_it(tiny_model: MakeTinyModel) -> None:
    with embedder(tiny_model(TinyModel("bert")), n_ctx=64, max_inputs=2) as one:
        wrong: list[list[list[int]]] = [[], [[]], [[1] * 65], [[1] * 40] * 2, [[1]] * 3]
        for inputs in wrong:
            with pytest.raises(ValueError, match=r"inputs of|an input has"):
                one.embed([as_tokens(tokens) for tokens in inputs])
        assert one.embed([as_tokens([1] * 64)]).shape == (1, 64)


@pytest.mark.parametrize(("pooling", "why"), [("none", "does not say how"), ("rank", "ranks texts")])
def test_a_model_that_gives_no_vectors_is_refused(tiny_model: MakeTinyModel, pooling: Pooling, why: str) -> None:
    model = LlamaModel.load(tiny_model(TinyModel("bert", pooling=pooling)))
    with pytest.raises(ModelLoadError, match=why):
        LlamaEmbedder(model, n_ctx=64, max_inputs=2, n_threads=1)
    model.close()
