"""Eight streams through the whole engine against the bare loop with a row of each a step, interleaved A B B A."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.bare import BareProcess, BareSettings
from benchmarks.engine_process import EngineProcess, take_luck_out
from benchmarks.report import Figures, spread
from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams
from forerun.models.resolve import resolve_model

_THREADS, _STREAMS, _PROMPT, _TOKENS, _PAIRS, _ROUNDS, _CONTEXT, _BATCH = 2, 8, 64, 96, 4, 4, 4096, 512


def run(model: str = "smollm2") -> Figures:
    """Ratio of speed, 1.0 = the bare loop; prompts are part of both."""
    take_luck_out()
    rng = np.random.default_rng(0)
    both = [one for _ in range(_PAIRS) for one in _one_pair(model, rng)]
    tokens = _STREAMS * _TOKENS
    return {
        "speed_against_bare": spread([bare / ours for ours, bare in both]),
        "bare_tokens_a_second": spread([tokens / bare for _, bare in both]),
        "forerun_tokens_a_second": spread([tokens / ours for ours, _ in both]),
        "streams": _STREAMS,
        "prompt_tokens": _PROMPT,
        "tokens": _TOKENS,
        "threads": _THREADS,
    }


def _one_pair(model: str, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Seconds of engine and bare loop, a process each."""
    options: dict[str, Any] = {
        "model": model,
        "n_ctx": _CONTEXT,
        "n_threads": _THREADS,
        "max_num_seqs": _STREAMS,
        "max_num_batched_tokens": _BATCH,
        "reuse_prefixes": False,
    }
    settings = BareSettings(resolve_model(model), _CONTEXT, _BATCH, _THREADS, _STREAMS)
    with EngineProcess(options) as engine, BareProcess(settings) as bare:
        _round(engine, bare, _prompts(rng), engine_first=True)  # warms both up
        return [_round(engine, bare, _prompts(rng), engine_first=index % 2 == 0) for index in range(_ROUNDS)]


def _prompts(rng: np.random.Generator) -> list[Tokens]:
    return [rng.integers(1000, 40_000, _PROMPT).astype(np.int32) for _ in range(_STREAMS)]


def _round(
    engine: EngineProcess, bare: BareProcess, prompts: list[Tokens], *, engine_first: bool
) -> tuple[float, float]:
    params = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)
    if engine_first:
        ours = engine.answers(prompts, params).seconds
        return ours, bare.together(prompts, _TOKENS)
    theirs = bare.together(prompts, _TOKENS)
    return engine.answers(prompts, params).seconds, theirs
