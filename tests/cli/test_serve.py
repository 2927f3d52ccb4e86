"""`forerun serve smollm2` as a process: it starts, chats, streams, reuses what it knows, and ends when told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

import httpx
import pytest

pytestmark = pytest.mark.model
PATIENCE = 120.0
QUESTION = {"role": "user", "content": "Name three colours of the rainbow, and say a little about each of them."}


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, once it is ready."""
    command = [sys.executable, "-m", "forerun", "serve", "smollm2", "--port", "0", *options]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process, _address_once_ready(process)
        finally:
            process.kill()


def _address_once_ready(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    stream = process.stderr
    found: Queue[str] = Queue()

    def read() -> None:
        said = ""
        for line in stream:
            said += line
            if ready := re.search(r"is ready at (http://\S+)", line):
                found.put(ready[1])
        found.put("")

    threading.Thread(target=read, daemon=True).start()
    address = found.get(timeout=PATIENCE)
    assert address, "the server ended before it was ready"
    return address


def test_a_server_chats_streams_reuses_a_conversation_and_ends_when_told_to() -> None:
    with serving("--shutdown-timeout", "5") as (process, address), httpx.Client(timeout=PATIENCE) as client:
        body = {"model": "smollm2", "messages": [QUESTION], "max_tokens": 24, "temperature": 0}
        first = client.post(address + "/v1/chat/completions", json=body).json()
        said = first["choices"][0]["message"]["content"]
        assert said

        with client.stream("POST", address + "/v1/chat/completions", json={**body, "stream": True}) as response:
            *chunks, done = [line.removeprefix("data: ") for line in response.iter_lines() if line[:5] == "data:"]
        assert done == "[DONE]"
        deltas = [json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        assert "".join(deltas)  # the cached prompt may decide a near tie otherwise: the words need not be the same

        messages = [QUESTION, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
        second = client.post(address + "/v1/chat/completions", json={**body, "messages": messages}).json()["usage"]
        assert second["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1

        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_an_open_stream_is_ended_within_the_stated_time_when_the_server_is_told_to_end() -> None:
    with serving("--shutdown-timeout", "0.5") as (process, address), httpx.Client(timeout=PATIENCE) as client:
        body = {"model": "smollm2", "messages": [QUESTION], "max_tokens": 5000, "ignore_eos": True, "stream": True}
        with client.stream("POST", address + "/v1/chat/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            process.send_signal(signal.SIGTERM)
            *_, last = lines
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        assert process.wait(30) == 0
