"""The engine's process is killed while it answers: streams end with an error, the server goes on, health says how."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from forerun.engine.front_end import FrontEndParts
from forerun.engine.process import Backoff, EngineProgram
from forerun.engine.remote import RemoteWorker
from forerun.engine.tokenizer import Tokenizer
from forerun.testing.served import ByteVocabulary, served_template
from tests.server.support import HELLO_BODY, ListeningServer, events_of, listening, seats_of

CHAT = "/v1/chat/completions"
STREAMS = 8
PATIENCE = 30.0


@pytest.fixture
def worker() -> Iterator[RemoteWorker]:
    """An engine process that makes 50 steps a second."""
    options = {"seconds_per_step": 0.02, "n_ctx": 200_000}
    worker = RemoteWorker(EngineProgram("forerun.testing.served:make", options, beat=0.1), backoff=Backoff(first=0.5))
    worker.started.result(PATIENCE)
    yield worker
    worker.close()


@pytest.fixture
def server(worker: RemoteWorker) -> Iterator[ListeningServer]:
    parts = FrontEndParts(
        worker=worker,
        tokenizer=Tokenizer(ByteVocabulary()),
        chat_template=served_template(),
        n_ctx=200_000,
        max_num_seqs=64,
    )
    with listening(parts) as server:
        yield server


def lines_of_stream(server: ListeningServer, number: int, begun: threading.Barrier) -> list[str]:
    """All lines of an endless stream until the server closes it; `begun` once it has content."""
    body = {**HELLO_BODY, "stream": True, "max_tokens": 20_000, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": f"stream {number}"}]
    lines = []
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=PATIENCE) as response:
        assert response.status_code == 200
        for count, line in enumerate(filter(None, response.iter_lines())):
            lines.append(line)
            if count == 3:
                begun.wait(PATIENCE)
    return lines


def health(server: ListeningServer) -> tuple[int, dict[str, object]]:
    response = httpx.get(server.url + "/health", timeout=PATIENCE)
    return response.status_code, response.json()


def health_once(server: ListeningServer, status: str) -> tuple[int, dict[str, object]]:
    """What health says as soon as it says this."""
    until = time.monotonic() + PATIENCE
    while (found := health(server))[1]["status"] != status:
        assert time.monotonic() < until, found
        time.sleep(0.01)
    return found


def test_all_streams_of_a_killed_engine_end_with_an_error_and_the_next_request_is_answered(
    server: ListeningServer, worker: RemoteWorker
) -> None:
    assert health(server) == (200, {"status": "ok", "models": {"fake": {"status": "ok"}}})
    before = worker.pid
    assert before is not None
    begun = threading.Barrier(STREAMS + 1)
    with ThreadPoolExecutor(STREAMS) as threads:
        streams = [threads.submit(lines_of_stream, server, number, begun) for number in range(STREAMS)]
        begun.wait(PATIENCE)
        os.kill(before, signal.SIGKILL)
        status, told = health_once(server, "restarting")
        ended = [stream.result(PATIENCE) for stream in streams]
    for lines in ended:
        assert "data: [DONE]" not in lines
        assert "error" not in json.loads(lines[-2].removeprefix("data: "))
        error = json.loads(lines[-1].removeprefix("data: "))["error"]
        assert error["code"] == "engine_died"
        assert "SIGKILL" in error["message"]
    assert status == 503
    assert told["attempt"] == 1
    assert "SIGKILL" in str(told["reason"])

    after = httpx.post(server.url + CHAT, json={**HELLO_BODY, "stream": True}, timeout=PATIENCE)  # waits for the engine
    assert after.status_code == 200
    assert events_of(after.text)[-1] == "[DONE]"
    assert health_once(server, "ok")[0] == 200
    assert worker.pid not in (None, before)
    assert seats_of(server.backend).open == 0
    assert psutil.Process(worker.pid).ppid() == os.getpid()  # the server's process is the one it was


def test_a_whole_answer_that_the_engine_dies_of_is_a_503_that_may_be_sent_again(
    server: ListeningServer, worker: RemoteWorker
) -> None:
    body = {**HELLO_BODY, "max_tokens": 20_000, "ignore_eos": True}
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(httpx.post, server.url + CHAT, json=body, timeout=PATIENCE)
        until = time.monotonic() + PATIENCE
        while server.stats() != (1, 0):
            assert time.monotonic() < until
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        response = answer.result(PATIENCE)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_died"
    assert int(response.headers["retry-after"]) >= 1
    health_once(server, "ok")
