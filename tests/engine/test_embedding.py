"""The embedding engine, on an embedder that a test can hold and break."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from forerun.core.prompt import Tokens, as_tokens
from forerun.engine.embedding import EmbeddingEngine, EmbeddingParts, Vectors
from forerun.engine.health import EngineState
from forerun.errors import EngineClosedError, EngineError, OverloadedError, StepFailedError
from tests.engine.support import SpellingVocabulary

BAD = 4
"""A text that holds this token fails its batch."""


class HeldEmbedder:
    """A vector is (tokens, sum of tokens); each batch waits until the test lets it go."""

    n_ctx, max_inputs, max_batch_tokens, dimensions = 8, 3, 12, 2

    def __init__(self) -> None:
        self.may_embed = threading.Semaphore(0)
        self.is_embedding = threading.Semaphore(0)
        self.batches: list[list[int]] = []
        self.fault: BaseException | None = None

    def embed(self, inputs: Sequence[Tokens]) -> Vectors:
        self.is_embedding.release()
        assert self.may_embed.acquire(timeout=20)
        self.batches.append([len(tokens) for tokens in inputs])
        if self.fault is not None:
            raise self.fault
        if any(BAD in tokens for tokens in inputs):
            raise EngineError("a bad batch")
        return np.array([[len(tokens), tokens.sum()] for tokens in inputs], np.float32)

    def close(self) -> None:
        self.batches.append([])

    def let_all_go(self) -> None:
        for _ in range(100):
            self.may_embed.release()


def engine_on(embedder: HeldEmbedder, max_queue: int = 4) -> EmbeddingEngine:
    parts = EmbeddingParts(embedder=embedder, vocabulary=SpellingVocabulary(), model_name="model", max_queue=max_queue)
    return EmbeddingEngine(parts)


def texts(*sizes: int) -> list[Tokens]:
    return [as_tokens([1] * size) for size in sizes]


def test_vectors_come_in_the_order_of_the_inputs() -> None:
    embedder = HeldEmbedder()
    embedder.let_all_go()
    engine = engine_on(embedder)
    assert engine.submit(texts(5, 1, 8, 2, 3)).result(20)[:, 0].tolist() == [5, 1, 8, 2, 3]
    assert engine.submit([]).result(20).shape == (0, 2)
    engine.close()


def test_what_waits_is_computed_together_within_the_limits_of_a_batch_and_jobs_take_turns() -> None:
    embedder = HeldEmbedder()
    engine = engine_on(embedder)
    first = engine.submit(texts(8))
    assert embedder.is_embedding.acquire(timeout=20)
    long, short = engine.submit(texts(5, 5, 5, 5)), engine.submit(texts(2))
    embedder.let_all_go()
    for future in (first, long, short):
        future.result(20)
    engine.close()
    assert embedder.batches == [[8], [5, 2, 5], [5, 5], []]


def test_who_fails_alone_fails_and_the_others_of_its_batch_do_not_notice() -> None:
    embedder = HeldEmbedder()
    engine = engine_on(embedder)
    held = engine.submit(texts(1))
    assert embedder.is_embedding.acquire(timeout=20)
    bad, good = engine.submit([as_tokens([1]), as_tokens([BAD])]), engine.submit(texts(3))
    embedder.let_all_go()
    assert held.result(20)[0, 0] == 1
    with pytest.raises(StepFailedError, match="input 1 could not be embedded: a bad batch"):
        bad.result(20)
    assert good.result(20)[0, 0] == 3
    assert engine.health.state is EngineState.READY
    engine.close()


def test_a_cancelled_job_is_not_computed_and_gives_its_place_back() -> None:
    embedder = HeldEmbedder()
    engine = engine_on(embedder, max_queue=2)
    first = engine.submit(texts(8))
    assert embedder.is_embedding.acquire(timeout=20)
    second = engine.submit(texts(7, 7))
    with pytest.raises(OverloadedError, match="2 requests are open, at most 2 may be"):
        engine.submit(texts(1))
    assert second.cancel()
    third = engine.submit(texts(3))
    embedder.let_all_go()
    assert (first.result(20)[0, 0], third.result(20)[0, 0]) == (8, 3)
    engine.close()
    assert embedder.batches == [[8], [3], []]


def test_inputs_that_no_batch_can_hold_are_refused() -> None:
    engine = engine_on(HeldEmbedder())
    for wrong in ([], [1] * 9, [5]):
        with pytest.raises(ValueError, match="an input has 1 to 8 tokens below 5"):
            engine.submit([as_tokens(wrong)])
    engine.close()


def test_closing_ends_what_waits_and_nothing_is_taken_afterwards() -> None:
    embedder = HeldEmbedder()
    engine = engine_on(embedder)
    running, waiting = engine.submit(texts(8)), engine.submit(texts(8))
    assert embedder.is_embedding.acquire(timeout=20)
    closing = threading.Thread(target=engine.close)
    closing.start()
    embedder.let_all_go()
    closing.join(20)
    assert running.result(20)[0, 0] == 8
    with pytest.raises(EngineClosedError):
        waiting.result(20)
    with pytest.raises(EngineClosedError):
        engine.submit(texts(1))
    with pytest.raises(EngineClosedError):
        engine.tokenizer.tokenize_plain("a")
    assert engine.health.state is EngineState.CLOSED


def test_when_the_thread_dies_everybody_who_waits_is_told() -> None:
    embedder = HeldEmbedder()
    embedder.fault = ZeroDivisionError("nobody foresaw this")
    engine = engine_on(embedder)
    futures = [engine.submit(texts(8)) for _ in range(2)]
    embedder.let_all_go()
    for future in futures:
        with pytest.raises(EngineClosedError, match="ZeroDivisionError"):
            future.result(20)
    assert engine.health.state is EngineState.FAILED
