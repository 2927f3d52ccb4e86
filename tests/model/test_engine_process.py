"""A real model in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from forerun import Engine, EngineConfig, EngineDiedError, ModelNotFoundError, SamplingParams
from forerun.compose_process import in_own_process
from forerun.engine.loading import LoadPhase
from forerun.engine.remote import RemoteWorker
from forerun.errors import InvalidConfigError
from tests.model.serving import usage_of

pytestmark = pytest.mark.model

TEN = SamplingParams(max_tokens=10, ignore_eos=True)
ENDLESS = SamplingParams(ignore_eos=True)
STORY = "Once upon a time there was a river that ran uphill on Sundays. " * 20


def test_after_kill_9_the_next_turn_finds_its_prefix_on_disk_and_goes_on_alike(
    tiny_dense_path: Path, tmp_path: Path
) -> None:
    seen: list[LoadPhase] = []
    config = EngineConfig(model=str(tiny_dense_path), n_ctx=2048, n_threads=1, cache_dir=str(tmp_path / "cache"))
    parts = in_own_process(config, lambda phase, *_: seen.append(phase))
    worker = parts.worker
    assert isinstance(worker, RemoteWorker)
    with Engine(parts) as engine:
        first = next(engine.generate(STORY, TEN))
        turn = f"{STORY} Go on."
        while engine.stats().disk_bytes == 0:
            next(engine.generate("a", TEN))
        expected = next(engine.generate(turn, TEN, reuses_cache=False)).text
        stream = engine.stream("Count to a thousand.", ENDLESS)
        next(stream)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError):
            list(stream)
        again = next(engine.generate(turn, TEN))
        assert usage_of(first).cached_tokens == 0
        assert usage_of(again).cached_disk_tokens > 200
        assert again.text == expected
    assert seen[0] is LoadPhase.FILES


def test_a_process_that_starts_again_needs_no_file_of_the_template(tiny_dense_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("[{{ messages[0].content }}]")
    parts = in_own_process(EngineConfig(model=str(tiny_dense_path), n_threads=1, chat_template=str(file)))
    worker = parts.worker
    assert isinstance(worker, RemoteWorker)
    with Engine(parts) as engine:
        file.unlink()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        while worker.health.attempt == 0:
            time.sleep(0.01)
        assert engine.chat_text([{"role": "user", "content": "Hello"}]).text == "[Hello]"
        assert next(engine.chat([{"role": "user", "content": "Hello"}], TEN)).usage is not None


def test_a_model_that_is_not_there_is_told_before_a_process_is_started(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        in_own_process(EngineConfig(model=str(tmp_path / "none.gguf")))


def test_a_drafter_that_is_an_object_cannot_go_to_another_process(smollm2_path: Path) -> None:
    class OneOfMine:
        name = "mine"

        def propose(self, requests: object) -> list[object]:
            raise AssertionError(requests)

    with pytest.raises(InvalidConfigError, match=r"drafter: .* give 'module:factory'"):
        in_own_process(EngineConfig(model=str(smollm2_path), drafter=OneOfMine))
