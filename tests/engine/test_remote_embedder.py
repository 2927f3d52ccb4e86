"""An embedder in a process of its own: the same vectors, and what happens when it dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from forerun.core.prompt import Tokens, as_tokens
from forerun.engine.embedding import EmbeddingEngine, EmbeddingParts
from forerun.engine.health import EngineState
from forerun.engine.process import Backoff, EngineProgram
from forerun.engine.remote_embedder import EMBEDDING_CHILD, RemoteEmbedder
from forerun.errors import (
    EngineClosedError,
    EngineDiedError,
    EngineError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    StepFailedError,
)
from forerun.testing import FakeVocabulary
from tests.engine.support import SpellingVocabulary
from tests.support.fake_embedder import FAILS, HANGS, KILLS, RAISES

AT_ONCE = Backoff(first=0.001, most=0.01)


@contextmanager
def remote(
    backoff: Backoff = AT_ONCE, program: dict[str, Any] | None = None, **options: Any
) -> Iterator[RemoteEmbedder]:
    """An embedder whose process builds tests.support.fake_embedder with `program`."""
    made = EngineProgram("tests.support.fake_embedder:make", program or {}, child=EMBEDDING_CHILD)
    embedder = RemoteEmbedder(made, backoff, **options)
    try:
        yield embedder
    finally:
        embedder.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[RemoteEmbedder]:
    """One whose process dies in several tests, of something else in each, and is ready again whenever one begins."""
    with remote() as embedder:
        yield embedder


@contextmanager
def engine_on(embedder: RemoteEmbedder) -> Iterator[EmbeddingEngine]:
    parts = EmbeddingParts(
        embedder=embedder,
        vocabulary=LargeVocabulary(),
        model_name="model",
        health=lambda: embedder.health,
        interrupt=embedder.close,
    )
    engine = EmbeddingEngine(parts)
    yield engine
    engine.close()


class LargeVocabulary(SpellingVocabulary, FakeVocabulary):
    size = 1000


def texts(*tokens: int) -> list[Tokens]:
    """One input for each of these tokens."""
    return [as_tokens([1, token]) for token in tokens]


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.002)


def kill(embedder: RemoteEmbedder) -> int:
    pid = embedder.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def test_vectors_are_those_of_the_embedder_and_a_failed_batch_says_why(shared: RemoteEmbedder) -> None:
    limits = (shared.n_ctx, shared.max_inputs, shared.max_batch_tokens, shared.dimensions)
    assert limits == (8, 4, 16, 2)
    assert shared.embed(texts(3, 5, 7)).tolist() == [[2, 4], [2, 6], [2, 8]]
    with pytest.raises(EngineError, match="a bad batch"):
        shared.embed(texts(3, FAILS))
    assert shared.embed(texts(2)).tolist() == [[2, 3]]


def test_a_process_that_dies_while_nobody_asks_is_started_again(shared: RemoteEmbedder) -> None:
    shared.started.result(30)
    before = kill(shared)
    wait_until(lambda: shared.pid not in (None, before) and shared.health.is_ready)
    assert shared.embed(texts(2)).tolist() == [[2, 3]]


def test_health_says_how_it_died_and_when_it_is_started_again() -> None:
    with remote(Backoff(first=60.0, most=60.0), longest_wait=0.01) as embedder:
        embedder.started.result(30)
        assert embedder.health.is_ready
        kill(embedder)
        wait_until(lambda: embedder.health.state is EngineState.RESTARTING)
        health = embedder.health
        assert "SIGKILL" in (health.reason or "")
        assert health.attempt == 1
        assert 50 < (health.seconds or 0) <= 60
        with pytest.raises(OverloadedError, match=r"was not ready for 0\.01 s: .*SIGKILL"):
            embedder.embed(texts(2))


def test_what_nobody_foresaw_ends_the_process_and_is_told_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with remote() as embedder, pytest.raises(EngineDiedError, match="ended with exit code 1"):
        embedder.embed(texts(RAISES))
    assert "ZeroDivisionError: a fault nobody foresaw" in capfd.readouterr().err


def test_who_shares_a_batch_with_what_kills_does_not_notice_and_that_is_refused_from_then_on() -> None:
    with remote() as embedder, engine_on(embedder) as engine:
        both = engine.submit([*texts(2), *texts(KILLS)])  # dies of it together, then alone
        beside = engine.submit(texts(3))
        with pytest.raises(EngineDiedError, match="SIGKILL"):
            both.result(30)
        assert beside.result(30).tolist() == [[2, 4]]
        wait_until(lambda: embedder.health.is_ready)
        process = embedder.pid
        again, beside = engine.submit(texts(2, KILLS)), engine.submit(texts(3))
        with pytest.raises(InvalidRequestError, match="died twice while it embedded exactly this") as refused:
            again.result(30)
        assert refused.value.field == "input[1]"
        assert beside.result(30).tolist() == [[2, 4]]
        assert engine.submit(texts(2, 3)).result(30).tolist() == [[2, 3], [2, 4]]  # not blamed
        with pytest.raises(StepFailedError, match="input 0 could not be embedded: a bad batch"):
            engine.submit(texts(FAILS)).result(30)
        assert embedder.pid == process


def test_what_may_have_killed_has_the_process_to_itself(shared: RemoteEmbedder) -> None:
    """Two that were in flight at a death, of something else, are not both blamed when one of them kills."""
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(shared.embed, texts(2, HANGS))
        wait_until(lambda: "None" not in repr(shared._batch))
        kill(shared)
        with pytest.raises(EngineDiedError):
            batch.result(30)
    with pytest.raises(EngineError, match="one of the inputs may be what the engine's process died of"):
        shared.embed(texts(2, 3))
    assert shared.embed(texts(2)).tolist() == [[2, 3]]
    assert shared.embed(texts(2, 3)).tolist() == [[2, 3], [2, 4]]  # cleared


def test_closing_ends_the_batch_and_the_process() -> None:
    with remote() as embedder, engine_on(embedder) as engine:
        job = engine.submit(texts(HANGS))
        wait_until(lambda: embedder._batch is not None)
        pid = embedder.pid
        engine.close()
        with pytest.raises(EngineClosedError, match="the engine was closed"):
            job.result(30)
        assert pid is not None
        assert not psutil.pid_exists(pid)
        with pytest.raises(EngineClosedError):
            embedder.embed(texts(2))
        assert engine.health.state is EngineState.CLOSED


def test_a_batch_that_takes_too_long_shows_in_health() -> None:
    now = [0.0]
    with remote(stall_after=60.0, clock=lambda: now[0]) as embedder, engine_on(embedder) as engine:
        job = engine.submit(texts(HANGS))
        wait_until(lambda: embedder._batch is not None)
        assert engine.health.is_ready
        now[0] = 61.0
        assert engine.health.state is EngineState.STALLED
        engine.close()
        assert isinstance(job.exception(30), EngineClosedError)


def test_a_first_load_that_fails_or_dies_is_final() -> None:
    with remote(program={"fails": "no such weights"}) as embedder:
        with pytest.raises(ModelLoadError, match="no such weights"):
            embedder.started.result(30)
        wait_until(lambda: embedder.pid is None)
        assert embedder.health.state is EngineState.FAILED
        with pytest.raises(EngineClosedError, match="no such weights"):
            embedder.embed(texts(2))
    with (
        remote(program={"dies": True}) as embedder,
        pytest.raises(EngineDiedError, match=r"SIGSEGV.* while it was load"),
    ):
        embedder.started.result(30)


def test_how_far_loading_is_shows_and_it_can_be_closed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "loading"
    file.touch()
    with remote(program={"loads_while": str(file)}) as embedder:
        wait_until(lambda: embedder.health.progress == 0.5)
        assert embedder.health.loading == "a model"
        embedder.close()
        with pytest.raises(EngineClosedError):
            embedder.started.result(30)
