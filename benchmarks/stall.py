"""What somebody who reads a stream sees while a prompt of 3,000 tokens arrives beside it, and when that is answered.

Servers in processes of their own, the same client for all: Forerun at three target latencies, and llama-server (of the
PyPI package xllamacpp, where it is installed) with its own batch size and with a small one. A stream decodes; then the
long prompt comes, and a short one a second later. The bars: the stream's largest gap is at most 1.5 times the target,
and the long prompt's first token comes within 15% of what the cost of rows says for that target, as measured here
before and after.

FORERUN_ITL names other targets, FORERUN_ROUNDS how often each is tried. With SmolLM2 on two cores at 20 ms a token one
round at 100 ms takes two minutes, at 400 ms forty seconds.

The wheel of xllamacpp is built for any x86-64, without AVX-512: compare its gaps with its own time a token.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.http_stream import ask
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.bench.passages import long_prose
from forerun.compose import build
from forerun.core.costs import CostCurve, LiveCosts
from forerun.core.step_budget import AIM, StepBudget, StepSoFar
from forerun.engine_config import EngineConfig

TARGETS_MS: Final = tuple(int(target) for target in os.environ.get("FORERUN_ITL", "100,200,400").split(","))
LLAMA_BATCHES: Final = (2048, 64)
"""Of llama-server: its default, and one that keeps gaps short."""
_MAX_ROWS: Final = 512
_WORDS: Final = 2300
"""About 3,000 tokens."""
_TOKENS_BEFORE: Final = 24
"""Of the stream, until the long prompt comes."""
_PATIENCE: Final = 240.0


@dataclass(frozen=True, slots=True)
class Stall:
    """One round. Milliseconds."""

    usual: float
    """Median between two tokens of the stream, undisturbed."""
    largest: float
    """Largest gap from when the long prompt came until it was answered."""
    long_ttft: float
    short_ttft: float
    prompt_tokens: int


def run() -> Figures:
    """Gaps and times to the first token, each server alone with its client."""
    use = settings((1, 1), rounds=(3, 2))
    curves = [_in_a_process(use.target)]
    figures: Figures = {}
    for target in TARGETS_MS:
        stalls = _rounds(["forerun", use.target, str(target)], use.rounds)
        curves.append(_in_a_process(use.target))
        figures[f"Forerun, {target} ms"] = _figures(stalls, target, _predicted(curves[-2:], target, stalls))
    if importlib.util.find_spec("xllamacpp") is not None:
        for batch in LLAMA_BATCHES:
            stalls = _rounds(["llama", use.target, str(batch)], use.rounds)
            figures[f"llama-server, batches of {batch}"] = _figures(stalls, None, None)
    return {"target": use.names["target"], "curves": [curve.as_json() for curve in curves], "settings": figures}


def _predicted(curves: list[CostCurve], target: int, stalls: list[Stall]) -> float:
    """What the long prompts take on average, by curves measured before and after: the machine is not always as fast."""
    return statistics.mean(predicted_ttft_ms(curve, target, one.prompt_tokens) for curve in curves for one in stalls)


def _figures(stalls: list[Stall], target: int | None, predicted: float | None) -> Figures:
    ttft = spread([stall.long_ttft for stall in stalls])
    return {
        "usual_gap_ms": spread([stall.usual for stall in stalls]),
        "largest_gap_ms": spread([stall.largest for stall in stalls]),
        "gap_of_target": max(stall.largest for stall in stalls) / target if target else "",
        "gap_of_usual": max(stall.largest / stall.usual for stall in stalls),
        "long_ttft_ms": ttft,
        "predicted_ttft_ms": predicted or "",
        "ttft_of_predicted": ttft.median / predicted if predicted else "",
        "short_ttft_ms": spread([stall.short_ttft for stall in stalls]),
        "prompt_tokens": stalls[0].prompt_tokens,
    }


def predicted_ttft_ms(curve: CostCurve, target: float, tokens: int) -> float:
    """What a prompt takes beside one stream in steps that the curve says are just within the target."""
    budget = StepBudget(LiveCosts(curve), target / AIM, max_rows=_MAX_ROWS, rows_beside_decode=_MAX_ROWS)
    ms, done = 0.0, 0
    while done < tokens:
        rows = min(budget.prefill_rows(StepSoFar(1, done, is_waited_for=True)), tokens - done)
        ms += curve.predict(1 + rows, done, logits=1)
        done += rows
    return ms


# --- servers ----------------------------------------------------------


def _in_a_process(model: str) -> CostCurve:
    """The cost of rows, measured in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return CostCurve.from_json(pool.apply(_measure, (model,)))


def _measure(model: str) -> dict[str, Any]:
    from forerun.native.calibration import Calibration
    from forerun.native.runner import LlamaRunner

    parts = build(config(model, None))
    assert isinstance(parts.runner, LlamaRunner)
    curve = Calibration(parts.runner.context).measure()
    parts.runner.close()
    return curve.as_json()


def config(model: str, target: float | None) -> EngineConfig:
    return EngineConfig(model=model, n_ctx=8192, n_threads=2, max_num_seqs=8, target_itl_ms=target, recalibrate=True)


@contextmanager
def _server(arguments: list[str]) -> Iterator[int]:
    """The port of a server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.stall_server", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(next(line for line in process.stdout if line.startswith("port ")).split()[1])
        finally:
            process.terminate()


# --- the client ----------------------------------------------------------


def _rounds(arguments: list[str], rounds: int) -> list[Stall]:
    with _server(arguments) as port:
        asyncio.run(_round(port, "warm", words=60))
        return [asyncio.run(_round(port, str(index))) for index in range(rounds)]


async def _round(port: int, name: str, words: int = _WORDS) -> Stall:
    stream = _Client(port, f"Tell a long story about number {name}.", 2000)
    reading = asyncio.create_task(stream.run())
    while len(stream.times) < _TOKENS_BEFORE:
        await asyncio.sleep(0.005)
    began = time.monotonic()
    long = _Client(port, long_prose(words, int(name) if name.isdecimal() else 99), 2)
    answering = asyncio.create_task(long.run())
    await asyncio.sleep(1.0)
    short = _Client(port, f"Say number {name}.", 2)
    await asyncio.wait_for(asyncio.gather(answering, short.run()), _PATIENCE)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    usual = [b - a for a, b in zip(stream.times, stream.times[1:], strict=False) if b < began]
    ended = long.times[0]
    gaps = [b - a for a, b in zip(stream.times, stream.times[1:], strict=False) if began < b and a < ended]
    return Stall(
        statistics.median(usual) * 1e3,
        max(gaps) * 1e3,
        (ended - long.began) * 1e3,
        (short.times[0] - short.began) * 1e3,
        long.prompt_tokens,
    )


class _Client:
    """One streamed completion: when each piece came."""

    def __init__(self, port: int, prompt: str, tokens: int) -> None:
        self._port = port
        self._prompt = prompt
        self._asked = tokens
        self.began = 0.0
        self.times: list[float] = []
        self.prompt_tokens = 0

    async def run(self) -> None:
        self.began = time.monotonic()
        reader, writer = await ask(self._port, "completions", self._asked, model="any", prompt=self._prompt)
        try:
            while line := await reader.readline():
                if line.startswith(b"data: {") and not self._take(json.loads(line[6:])):
                    return
        finally:
            writer.close()

    def _take(self, event: dict[str, Any]) -> bool:
        """False once the stream has said all."""
        if event.get("choices") and event["choices"][0].get("text"):
            self.times.append(time.monotonic())
        if event.get("usage"):
            self.prompt_tokens = event["usage"]["prompt_tokens"]
        return not self.prompt_tokens
