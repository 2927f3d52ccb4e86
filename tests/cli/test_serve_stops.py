"""`forerun serve` is told to stop: a real process and real signals, on the paced fake engine."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

PATIENCE = 30.0
PROGRAM = """
from forerun.cli import main, serve
from tests.engine.processes import front_end_parts
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.process import EngineProgram
from forerun.engine.remote import RemoteWorker

def fake(_config, _progress, spare):
    worker = RemoteWorker(EngineProgram("forerun.testing.served:make", {"seconds_per_step": 0.01}, spare=spare))
    worker.started.result()
    return AsyncioEngine(front_end_parts(worker))

serve.open_engine = fake
main()
"""
LOADING = """
import os
import sys
from forerun.cli import main, serve
from forerun.compose_process import wait_until_started
from forerun.engine.process import EngineProgram
from forerun.engine.remote import RemoteWorker

sys.path.append(os.getcwd())  # where the process finds the tests' engine

def endless(_config, progress, spare):
    worker = RemoteWorker(EngineProgram("tests.support.fake_engine:make", {"loads_while": "/"}, spare=spare))
    while not worker.health.progress:
        assert worker.health.is_alive, worker.health
    print("loads in", worker.pid, file=sys.stderr, flush=True)
    wait_until_started(worker, progress)

serve.open_engine = endless
main()
"""


class Served:
    """The command's process, whose lines on standard error can be awaited."""

    def __init__(self, program: str = PROGRAM, ready: str = "is ready at") -> None:
        """`ready`: a line with these words is awaited."""
        command = [sys.executable, "-c", program, "serve", "fake", "--port", "0", "--log-format", "off"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.line = self.line_with(ready)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return self.line.split(" ready at ")[1].split()[0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put("")

    def close(self) -> None:
        assert self.process.stderr is not None
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        self.process.stderr.close()

    def line_with(self, words: str) -> str:
        while words not in (line := self._lines.get(timeout=PATIENCE)):
            assert line, f"it ended without saying {words!r}"
        return line.rstrip()

    def end_of_stream(self, begun: threading.Barrier, ends: list[str]) -> None:
        """Put the last event of an endless stream into `ends`."""
        body = {"model": "fake", "prompt": "x", "stream": True, "max_tokens": 60_000, "ignore_eos": True}
        with httpx.stream("POST", self.url + "/v1/completions", json=body, timeout=PATIENCE) as response:
            lines = filter(None, response.iter_lines())
            next(lines)
            begun.wait(PATIENCE)
            ends.append(list(lines)[-1])


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.mark.parametrize(
    ("first", "count", "said"),
    [
        (signal.SIGINT, 2, "stopping: 2 open answers have 30 s; Ctrl-C again ends them at once"),
        (signal.SIGTERM, 1, "stopping: 1 open answer has 30 s; Ctrl-C again ends it at once"),
    ],
)
def test_open_answers_are_told_of_and_a_second_ctrl_c_ends_them_in_order(
    served: Served, first: signal.Signals, count: int, said: str
) -> None:
    begun, ends = threading.Barrier(count + 1), list[str]()
    streams = [threading.Thread(target=served.end_of_stream, args=(begun, ends), daemon=True) for _ in range(count)]
    for stream in streams:
        stream.start()
    begun.wait(PATIENCE)
    (engine,) = (p for p in psutil.Process(served.process.pid).children() if "forerun.engine.child" in p.cmdline())
    served.process.send_signal(first)
    assert served.line_with("stopping") == said
    assert served.process.poll() is None
    served.process.send_signal(signal.SIGINT)
    cut_at = time.monotonic()
    assert served.process.wait(PATIENCE) == 0
    for stream in streams:
        stream.join(PATIENCE)
    assert time.monotonic() - cut_at < PATIENCE / 2, "it took as long as without a second Ctrl-C"
    assert len(ends) == count
    assert all("the server is being stopped" in end for end in ends)
    engine.wait(PATIENCE)


def test_a_server_without_open_answers_stops_without_a_word(served: Served) -> None:
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(PATIENCE) == 0
    assert served._lines.get(timeout=PATIENCE).startswith("  curl ")
    assert served._lines.get(timeout=PATIENCE) == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_told_to_stop_while_it_loads_ends_at_once_and_leaves_no_process(
    number: signal.Signals,
) -> None:
    served = Served(LOADING, "loads in")
    try:
        engine = psutil.Process(int(served.line.split()[-1]))
        served.process.send_signal(number)
        assert served.process.wait(PATIENCE) == 0
        assert served._lines.get(timeout=PATIENCE) == "", "it said something"
        engine.wait(PATIENCE)
    finally:
        served.close()
