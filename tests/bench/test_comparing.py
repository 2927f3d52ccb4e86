"""Servers in turns, the others asleep."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forerun.bench.client import Client, Target
from forerun.bench.comparing import Plan, Side, measure
from forerun.bench.http import Address
from forerun.bench.launching import RunningServer, free_port
from forerun.bench.peers import Launch, Setup, launch_of
from forerun.bench.processes import ProcessTree
from forerun.bench.results import SystemResult, read_results
from forerun.bench.workloads.prefixes import Tools
from forerun.bench.workloads.streams import Single
from forerun.errors import BenchmarkError
from tests.server.support import MODEL, ListeningServer


class Watch:
    """Says when a server is awake."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name, self._seen = name, seen

    def __enter__(self) -> None:
        self._seen.append(self._name)

    def __exit__(self, *_: object) -> None:
        self._seen.append(f"{self._name} sleeps")


def side(server: ListeningServer, name: str, seen: list[str], model: str = MODEL) -> Side:
    return Side(Target(name, Address.parse(server.url), model), Watch(name, seen), SystemResult(name))


def test_servers_are_asked_in_turns_and_one_is_awake_at_a_time(
    listening_server: ListeningServer, tmp_path: Path
) -> None:
    seen: list[str] = []
    sides = [side(listening_server, name, seen) for name in ("a", "b")]
    plan = Plan([Single(16, 4)], rounds=3, seed=1, folder=tmp_path)
    found = asyncio.run(measure(sides, plan, {}, lambda _: None))
    assert seen[::2] == ["a", "b", "b", "a", "a", "b"]
    assert all(f"{name} sleeps" == after for name, after in zip(seen[::2], seen[1::2], strict=True))
    assert [set(one) for one in found.workloads[0].rounds] == [{"a", "b"}] * 3
    assert read_results(tmp_path) == found, "written as soon as it is known"
    prompts = [one["a"].work for one in found.workloads[0].rounds]
    assert prompts == [one["b"].work for one in found.workloads[0].rounds]


def test_who_fails_is_not_asked_again_and_the_others_go_on(listening_server: ListeningServer, tmp_path: Path) -> None:
    seen: list[str] = []
    sides = [side(listening_server, "a", seen), side(listening_server, "b", seen, model="unknown")]
    plan = Plan([Single(16, 4), Tools(1, 1, 8, 4)], rounds=2, seed=1, folder=tmp_path)
    found = asyncio.run(measure(sides, plan, {}, lambda _: None))
    for result in found.workloads:
        assert list(result.errors) == ["b"]
        assert "404" in result.errors["b"]
        assert [set(one) for one in result.rounds] == [{"a"}, {"a"}]


# --- processes ----------------------------------------------------------

_SERVER = """
import http.server, sys, subprocess, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(b"ok")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"length"}]}\\n\\n')
    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@contextmanager
def running(tmp_path: Path, program: str = _SERVER) -> Iterator[RunningServer]:
    """A server with a child that burns a core."""
    port = free_port()
    launch = Launch("one", (sys.executable, "-c", program, str(port)), "1")
    server = RunningServer(launch, port, tmp_path / "log")
    try:
        yield server
    finally:
        server.close()


def test_a_started_server_tells_how_soon_it_answered_and_sleeps_with_all_its_children(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        told = server.told(asyncio.run(server.ready()))
        assert told.start_to_first_token_s is not None
        assert told.start_to_first_token_s > 0
        assert told.resident_mb is not None
        tree = server.target.process
        assert tree is not None
        with server:
            assert states(tree).isdisjoint({"T"})
        assert states(tree) == {"T"}
        assert len(tree.pids()) == 2
        with server:
            asyncio.run(Client(server.target).get("/health"))
        pids = tree.pids()
    while any(map(is_alive, pids)):  # what was killed is gone a moment later; else this test takes too long
        pass
    assert tree.pids() == []
    assert tree.taken() is None


def is_alive(pid: int) -> bool:
    """A process that has ended and that nobody has asked about yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def states(tree: ProcessTree) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in tree.pids()}


def test_a_server_that_ends_is_told_with_what_it_said(tmp_path: Path) -> None:
    with (
        running(tmp_path, "import sys; sys.exit('no such model')") as server,
        pytest.raises(BenchmarkError, match="one ended with 1: no such model"),
    ):
        asyncio.run(server.ready())


def test_the_time_of_all_children_is_counted() -> None:
    burner = "import os\nwhile sum(os.times()[:2]) < 0.2: pass"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burner!r}]); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        tree = ProcessTree(process.pid)
        while (taken := tree.taken()) is not None and taken.cpu_seconds < 0.2:
            pass
        assert taken is not None
        process.kill()


# --- peers ----------------------------------------------------------


def test_all_servers_get_the_same_model_context_threads_and_sequences(tmp_path: Path) -> None:
    peers = tmp_path / "peers"
    (peers / "source/examples/server").mkdir(parents=True)
    (peers / "source/examples/server/server.py").touch()
    wheel = peers / "site/xllamacpp-9.dist-info"
    wheel.mkdir(parents=True)
    (wheel / "METADATA").write_text("Name: xllamacpp\nVersion: 9\n")
    binary = peers / "llama-server"
    binary.write_text("#!/bin/sh\necho version: 1\n")
    binary.chmod(0o755)
    setup = Setup(Path("/m.gguf"), n_ctx=4321, sequences=7, threads=3, peers=peers, end_tokens=(2, 5))
    for name in ("forerun:off", "llama-server:ngram-simple/3/16", "llama-server-wheel", "llama-cpp-python"):
        launch = launch_of(name, setup, 99, tmp_path)
        assert launch.name == name
        said = " ".join(launch.command)
        if name == "llama-cpp-python":
            said = (tmp_path / "llama-cpp-python-99.json").read_text()
            assert launch.extra["logit_bias"].keys() == {"2", "5"}
        for value in ("/m.gguf", "4321", "7", "3", "99"):
            assert value in said, (name, said)


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("ollama", "no server 'ollama', but forerun, llama-server"),
        ("forerun:fast", "'fast', but off and auto"),
        ("llama-server", "build_llama_server.sh"),
        ("llama-cpp-python", "build_llama_server.sh"),
        ("llama-server-wheel", "pip install --target PEERS/site xllamacpp"),
    ],
)
def test_a_server_that_there_is_not_is_told_with_what_to_do(system: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=words):
        launch_of(system, Setup(Path("/m.gguf")), 99, tmp_path)
