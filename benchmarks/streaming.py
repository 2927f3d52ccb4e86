"""What HTTP costs streams: tokens a second through the server against the engine's own, and the front end's CPU time.

Both sides get the same requests: `streams` at once, so many tokens each. The engine is in a process of its own either
way; on the server's side the front end, uvicorn and this client come on top. The fake engine makes 50 steps a second
whatever they cost; the real one takes both cores, so that all CPU time of the front end shows.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.http_stream import ask
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.compose import AsyncEngine
from forerun.compose_process import in_own_process
from forerun.core.request import SamplingParams
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.front_end import FrontEndParts
from forerun.engine.loading import LoadProgress
from forerun.engine.process import EngineProgram
from forerun.engine.remote import RemoteWorker
from forerun.engine.tokenizer import Tokenizer
from forerun.engine_config import EngineConfig
from forerun.testing.served import ByteVocabulary, served_template

FAKE: Final = "fake"
STEPS_A_SECOND: Final = 50
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PROMPT: Final = "Tell a long story about number {}."


@dataclass(frozen=True, slots=True)
class Run:
    """All streams of one round."""

    tokens: int
    seconds: float
    """From the first token of any stream to the last of all: prompts are not what is measured."""
    cpu: float = 0.0
    """Seconds of CPU time that the front end took meanwhile."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def streaming() -> Figures:
    """32 streams of a fake engine at 50 steps a second, and 8 of SmolLM2."""
    use = settings((200, 100), rounds=(5, 3))
    return {
        "tokens": use.tokens,
        "settings": {
            "32 streams, fake engine": _compared(FAKE, 32, use.tokens, use.rounds),
            f"8 streams, {Path(use.target).stem}": _compared(use.target, 8, use.tokens, use.rounds),
        },
    }


def _compared(model: str, streams: int, tokens: int, rounds: int) -> dict[str, object]:
    engine_rates: list[float] = []
    server_runs: list[Run] = []
    for index in range(rounds):
        for side in ("engine", "server") if index % 2 == 0 else ("server", "engine"):
            if side == "engine":
                engine_rates.append(asyncio.run(_engine_run(model, streams, tokens)).rate)
            else:
                with _server(model) as (port, pid):
                    server_runs.append(asyncio.run(_server_run(model, port, pid, streams, tokens)))
    ratios = [run.rate / rate for run, rate in zip(server_runs, engine_rates, strict=True)]
    return {
        "of_engines_rate": spread(ratios),
        "engine_tokens_a_second": spread(engine_rates),
        "server_tokens_a_second": spread([run.rate for run in server_runs]),
        "front_end_cpu_us_a_token": spread([run.cpu / run.tokens * 1e6 for run in server_runs]),
    }


# --- the engine alone ----------------------------------------------------------


def open_engine(config: EngineConfig, progress: LoadProgress) -> AsyncioEngine:
    """An engine in a process of its own; the model "fake" keeps a pace instead of computing."""
    if config.model != FAKE:
        return AsyncEngine(in_own_process(config, progress))
    program = EngineProgram("forerun.testing.served:make", {"seconds_per_step": 1 / STEPS_A_SECOND})
    worker = RemoteWorker(program)
    worker.started.result()
    return AsyncioEngine(
        FrontEndParts(
            worker=worker,
            tokenizer=Tokenizer(ByteVocabulary()),
            chat_template=served_template(),
            model_name=FAKE,
            n_ctx=65_536,
            max_num_seqs=64,
        )
    )


def config(model: str) -> EngineConfig:
    return EngineConfig(model=model, n_ctx=8192, n_threads=2, max_num_seqs=64)


async def _engine_run(model: str, streams: int, tokens: int) -> Run:
    engine = await asyncio.to_thread(open_engine, config(model), lambda *_: None)
    async with engine:
        await _consume(engine, 2, 4)  # what only the first requests pay for
        return await _consume(engine, streams, tokens)


async def _consume(engine: AsyncioEngine, streams: int, tokens: int) -> Run:
    prompts = [_PROMPT.format(index) for index in range(streams)]
    count, began, ended = 0, 0.0, 0.0
    async for output in engine.stream(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True)):
        if output.token_ids:
            ended = time.monotonic()
            began = began or ended
            count += len(output.token_ids)
    return Run(count, ended - began)


# --- through the server ----------------------------------------------------------


@contextmanager
def _server(model: str) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and its process id."""
    command = [sys.executable, "-m", "benchmarks.streaming_server", model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield port, process.pid
        finally:
            process.terminate()


async def _server_run(model: str, port: int, pid: int, streams: int, tokens: int) -> Run:
    await asyncio.gather(*(_Client(model, port, index, 4).run() for index in range(2)))
    before = _cpu_seconds(pid)
    clients = [_Client(model, port, index, tokens) for index in range(streams)]
    await asyncio.gather(*(client.run() for client in clients))
    cpu = _cpu_seconds(pid) - before
    first = min(client.first for client in clients)
    return Run(sum(client.tokens for client in clients), max(client.last for client in clients) - first, cpu)


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process, its children left out. proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class _Client:
    """One streamed chat, read with next to no CPU time."""

    def __init__(self, model: str, port: int, index: int, tokens: int) -> None:
        self._port = port
        self._asked = tokens
        self._fields = {"model": model, "messages": [{"role": "user", "content": _PROMPT.format(index)}]}
        self.tokens = 0
        self.first = self.last = 0.0

    async def run(self) -> None:
        reader, writer = await ask(self._port, "chat/completions", self._asked, **self._fields)
        try:
            await self._read(reader)
        finally:
            writer.close()
        if not self.tokens:
            raise RuntimeError("the server's stream ended without usage")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            if b'"content":"' in data and b'"finish_reason":"' not in data:
                self.last = time.monotonic()
                self.first = self.first or self.last
            at = data.find(b'"completion_tokens":')
            if at >= 0:
                self.tokens = int(data[at + 20 : at + 30].split(b",")[0])
                return
