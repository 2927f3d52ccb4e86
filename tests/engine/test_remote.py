"""An engine in a process of its own: the same answers, and what happens when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from forerun import (
    AsyncEngine,
    Engine,
    EngineClosedError,
    EngineDiedError,
    EngineState,
    InvalidRequestError,
    ModelLoadError,
    Output,
    SamplingParams,
)
from forerun.engine.loading import LoadPhase
from forerun.engine.process import Backoff
from forerun.engine.remote import RemoteLimits, RemoteWorker
from forerun.errors import OverloadedError
from forerun.testing.served import served_parts
from tests.engine.processes import front_end_parts, remote_worker, running
from tests.support.fake_engine import HANGS, KILLS, RAISES

TEN = SamplingParams(max_tokens=10, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=60_000, ignore_eos=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[Engine]:
    """An engine that no test ends."""
    with running(remote_worker()) as worker:
        yield Engine(front_end_parts(worker))


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def collected(engine: Engine, prompts: list[str], params: list[SamplingParams]) -> dict[int, Output]:
    return {output.index: output for output in engine.generate(prompts, params, raw=True)}


def test_a_random_batch_gets_the_answers_of_an_engine_on_a_thread(shared: Engine) -> None:
    dice = Random(5)
    prompts = ["".join(dice.choices("abc é世\n", k=dice.randint(1, 60))) for _ in range(24)]
    params = [
        SamplingParams(
            max_tokens=dice.randint(1, 30),
            temperature=dice.choice([0.0, 1.0]),
            seed=dice.randint(0, 2**64 - 1),
            logit_bias=dice.choice([{}, {97: float("-inf")}]),
            stop=dice.choice([(), ("ab", "z")]),
            logprobs=dice.choice([None, 2]),
        )
        for _ in prompts
    ]
    ours = collected(shared, prompts, params)
    with Engine(served_parts()) as engine:
        theirs = collected(engine, prompts, params)
    for index, expected in theirs.items():
        got = ours[index]
        assert (got.text, got.token_ids, got.finish_reason) == (
            expected.text,
            expected.token_ids,
            expected.finish_reason,
        )
        assert got.logprobs == expected.logprobs
        assert got.origins == expected.origins
        assert got.usage is not None
        assert expected.usage is not None
        assert got.usage.output_tokens == expected.usage.output_tokens


def test_refusals_and_answers_of_the_cache_travel(shared: Engine) -> None:
    with pytest.raises(InvalidRequestError, match=r"logit_bias: token id 999 is outside the vocabulary") as caught:
        next(shared.generate("a", SamplingParams(logit_bias={999: 1.0})))
    assert caught.value.field == "logit_bias"
    prompt = "What is remembered of a prompt that is long enough to be?"
    output = next(shared.generate(prompt, TEN))
    looked_up = shared.cache.lookup(prompt)
    assert looked_up.resident_tokens == looked_up.prompt_tokens - 1
    explained = shared.cache.explain(output.request_id)
    assert explained is not None
    assert explained.report.request_id == output.request_id
    assert shared.cache.explain("unknown") is None
    assert shared.cache.pin(prompt, 5.0) == 0
    assert shared.cache.clear() > 0
    assert shared.cache.lookup(prompt).cached_tokens == 0
    with pytest.raises(InvalidRequestError, match="adapters: 'x' is not known"):
        shared.cache.lookup(prompt, adapters="x")


def test_an_abort_and_a_reader_who_leaves_end_requests(shared: Engine) -> None:
    stream = shared.stream(["a", "b"], ENDLESS)
    next(stream)
    shared.abort([next(stream).request_id])
    next(output for output in stream if output.finish_reason is not None)
    stream.close()
    wait_until(lambda: shared.stats().running == 0)


def test_streams_of_tasks_join_to_whole_answers_and_report_progress(shared: Engine) -> None:
    async def main() -> None:
        engine = AsyncEngine(front_end_parts(shared._worker))  # type: ignore[arg-type]
        engine._closes_when_dropped.detach()
        prompt = "x" * 2000

        async def one(index: int) -> str:
            pieces = [piece async for piece in engine.stream(f"{index}{prompt}", TEN, reports_progress=True)]
            assert pieces[0].prefill_done is not None
            return "".join(piece.text for piece in pieces)

        texts = await asyncio.gather(*map(one, range(8)))
        whole = [await anext(engine.generate(f"{index}{prompt}", TEN)) for index in range(8)]
        assert texts == [output.text for output in whole]

    asyncio.run(main())


def test_kill_9_ends_every_stream_with_an_error_at_once_and_the_next_request_is_answered() -> None:
    with running(remote_worker()) as worker:
        engine = Engine(front_end_parts(worker))
        streams = [engine.stream(f"stream {index}", ENDLESS) for index in range(8)]
        for stream in streams:
            next(stream)
        first_pid = worker.pid
        assert first_pid is not None
        os.kill(first_pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDiedError, match="killed by signal 9"):
                list(stream)
        assert not worker._open
        assert next(engine.generate("stream 3", TEN)).text
        assert worker.pid != first_pid
        assert worker.health.state is EngineState.READY


def test_an_engine_thread_that_dies_ends_the_process_and_another_one_comes() -> None:
    with running(remote_worker()) as worker:
        engine = Engine(front_end_parts(worker))
        with pytest.raises(EngineDiedError, match="ZeroDivisionError: a fault nobody foresaw"):
            next(engine.generate(RAISES, TEN))
        assert next(engine.generate("a", TEN)).text


def test_what_the_process_died_of_twice_is_refused_and_who_was_beside_it_is_answered() -> None:
    with running(remote_worker()) as worker:
        engine = Engine(front_end_parts(worker))
        for _ in range(2):
            outputs = list(engine.generate([KILLS, "beside it"], [TEN, SamplingParams(max_tokens=2000)]))
            assert {type(output.error) for output in outputs} <= {EngineDiedError, type(None)}
            assert isinstance(next(one for one in outputs if one.index == 0).error, EngineDiedError)
        pid = worker.pid
        with pytest.raises(InvalidRequestError, match="prompt: the engine's process died twice"):
            next(engine.generate(KILLS, SamplingParams(max_tokens=3, seed=7)))
        assert next(engine.generate("beside it", TEN)).text
        assert worker.pid == pid or pid is None


def test_closing_ends_open_requests_and_the_process() -> None:
    worker = remote_worker()
    worker.started.result(30)
    engine = Engine(front_end_parts(worker))
    stream = engine.stream("a", ENDLESS)
    next(stream)
    assert worker.pid is not None
    process = psutil.Process(worker.pid)
    worker.close()
    with pytest.raises(EngineClosedError, match="the engine was closed"):
        list(stream)
    with pytest.raises(EngineClosedError):
        engine.stats()
    assert not process.is_running()
    assert worker.health.state is EngineState.CLOSED
    worker.close()


def test_a_process_that_does_not_end_in_time_is_killed() -> None:
    worker = remote_worker(RemoteLimits(close=0.2))
    worker.started.result(30)
    assert worker.pid is not None
    process = psutil.Process(worker.pid)
    stream = Engine(front_end_parts(worker)).stream(HANGS, TEN)
    worker.close()
    with pytest.raises(EngineClosedError):
        list(stream)
    assert not process.is_running()


def test_a_stopped_process_does_not_keep_the_front_end_from_closing() -> None:
    worker = remote_worker(RemoteLimits(close=0.2))
    worker.started.result(30)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    worker.close()
    assert worker.health.state is EngineState.CLOSED


def test_closing_while_a_model_loads_ends_it_at_once(tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    loads.touch()
    worker = remote_worker(loads_while=str(loads))
    wait_until(lambda: worker.health.progress == 0.5)
    assert worker.health.state is EngineState.LOADING
    assert worker.health.phase is LoadPhase.TARGET
    assert worker.health.loading == "a model"
    stream = Engine(front_end_parts(worker)).stream("waits", TEN)
    worker.close()
    with pytest.raises(EngineClosedError):
        list(stream)
    with pytest.raises(EngineClosedError):
        worker.started.result(5)


def test_requests_wait_for_an_engine_that_loads_and_too_many_or_too_late_ones_are_refused(tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    loads.touch()
    worker = remote_worker(RemoteLimits(most_waiting=2, longest_wait=1.0), loads_while=str(loads))
    try:
        engine = Engine(front_end_parts(worker))
        wait_until(lambda: worker.health.progress == 0.5)
        streams = [engine.stream(prompt, TEN) for prompt in "ab"]
        wait_until(lambda: len(worker._waiting) == 2)
        with pytest.raises(OverloadedError, match="2 requests wait for the engine already"):
            engine.stream("c", TEN)
        with pytest.raises(OverloadedError, match="the engine is being loaded"):
            engine.stats()
        for stream in streams:
            with pytest.raises(OverloadedError, match="was not ready for 1 s"):
                list(stream)
        waiting = engine.stream("d", TEN)
        loads.unlink()
        assert sum(len(output.token_ids) for output in waiting) == 10
    finally:
        worker.close()


def test_a_model_that_cannot_be_loaded_is_final_and_says_why() -> None:
    worker = remote_worker(fails="bad.gguf: is no model")
    with pytest.raises(ModelLoadError, match=r"^bad\.gguf: is no model$"):
        worker.started.result(30)
    wait_until(lambda: worker.health.state is EngineState.FAILED)
    assert worker.health.reason == "bad.gguf: is no model"
    with pytest.raises(EngineClosedError, match="is no model"):
        next(Engine(front_end_parts(worker)).generate("a", TEN))
    assert worker.pid is None or not psutil.pid_exists(worker.pid)


def test_a_process_that_dies_loading_for_the_first_time_is_not_started_again() -> None:
    worker = remote_worker(dies=True)
    with pytest.raises(EngineDiedError, match=r"killed by signal 11 \(SIGSEGV\) while it was loading"):
        worker.started.result(30)
    worker.close()


def test_health_tells_when_it_is_tried_again() -> None:
    with running(remote_worker(backoff=Backoff(first=30.0, most=60.0))) as worker:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: worker.health.state is EngineState.RESTARTING)
        health = worker.health
        assert health.attempt == 1
        assert health.is_alive
        assert health.seconds is not None
        assert 20 < health.seconds <= 30
        with pytest.raises(OverloadedError) as caught:
            worker_stats(worker)
        assert 20 < caught.value.retry_after <= 30


def worker_stats(worker: RemoteWorker) -> None:
    Engine(front_end_parts(worker)).stats()


def test_x4_health_reports_a_step_that_does_not_end() -> None:
    limits = RemoteLimits(stall_after=0.3, close=0.1)
    with running(remote_worker(limits, beat=0.02)) as worker:
        engine = Engine(front_end_parts(worker))
        assert next(engine.generate("a", TEN)).text
        stuck = engine.stream(HANGS, TEN)
        wait_until(lambda: worker.health.state is EngineState.STALLED)
        assert worker.health.reason is not None
        assert "no step has ended for" in worker.health.reason
        stuck.close()


def test_a_process_whose_parent_is_killed_ends() -> None:
    script = (
        "import time; from tests.engine.processes import remote_worker\n"
        "worker = remote_worker(); worker.started.result(30); print(worker.pid, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([process], timeout=10)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_ctrl_c_and_a_service_manager_s_sigterm_are_left_to_the_front_end() -> None:
    with running(remote_worker()) as worker:
        engine = Engine(front_end_parts(worker))
        stream = engine.stream("a", SamplingParams(max_tokens=2000, ignore_eos=True))
        next(stream)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
        assert sum(len(output.token_ids) for output in stream) == 1999


def test_a_process_with_a_fake_model_loads_no_native_library_and_no_server(tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    with running(remote_worker(imported=str(imported))):
        names = set(imported.read_text().split())
    assert not names & {"llama_cpp", "fastapi", "uvicorn", "pydantic", "llguidance"}


def test_a_process_logs_what_its_front_end_would(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """llama.cpp's warnings at each start came through, which commands keep to themselves."""
    caplog.set_level(logging.CRITICAL, "forerun.native")
    with running(remote_worker(warns=["forerun.native", "forerun.engine.child"])):
        pass
    assert capfd.readouterr().err.splitlines() == ["WARNING forerun.engine.child: this is wrong"]


def test_sockets_of_the_server_are_not_inherited() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.set_inheritable(listening.fileno(), True)
        with running(remote_worker()) as worker:
            assert worker.pid is not None
            assert not psutil.Process(worker.pid).net_connections("inet")


def test_no_thread_is_left_of_a_closed_worker() -> None:
    before = set(threading.enumerate())
    with running(remote_worker()) as worker:
        Engine(front_end_parts(worker)).stats()
    wait_until(lambda: set(threading.enumerate()) <= before)
