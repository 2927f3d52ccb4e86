"""One stream through the whole engine against the bare loop, same model, same run, interleaved A B B A.

Several pairs of processes, since the memory a process happens to get moves its speed by some percent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.bare import BareProcess, BareSettings, Timing
from benchmarks.engine_process import EngineProcess, take_luck_out
from benchmarks.report import Figures, spread
from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams
from forerun.models.resolve import resolve_model

_THREADS = 2
_PROMPT = 1024
_TOKENS = 96
_PAIRS = 6
_ROUNDS = 4
_CONTEXT = 2048
_BATCH = 512
_Both = tuple[Timing, Timing]


def run(model: str = "smollm2") -> Figures:
    """Ratios of speed, 1.0 = the bare loop; the engine's time includes its thread and the hand-over of each token."""
    rng = np.random.default_rng(0)
    take_luck_out()
    return _figures([both for _ in range(_PAIRS) for both in _one_pair(model, rng)])


def _one_pair(model: str, rng: np.random.Generator) -> list[_Both]:
    options: dict[str, Any] = {
        "model": model,
        "n_ctx": _CONTEXT,
        "n_threads": _THREADS,
        "max_num_batched_tokens": _BATCH,
        "reuse_prefixes": False,
    }
    settings = BareSettings(resolve_model(model), _CONTEXT, _BATCH, _THREADS)
    with EngineProcess(options) as engine, BareProcess(settings) as bare:
        _round(engine, bare, _random_prompt(rng), engine_first=True)  # warms both up
        return [_round(engine, bare, _random_prompt(rng), engine_first=index % 2 == 0) for index in range(_ROUNDS)]


def _random_prompt(rng: np.random.Generator) -> Tokens:
    return rng.integers(1000, 40_000, _PROMPT).astype(np.int32)


def _round(engine: EngineProcess, bare: BareProcess, prompt: Tokens, *, engine_first: bool) -> _Both:
    params = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)
    if engine_first:
        ours = engine.answer(prompt, params).timing
        return ours, bare.answer(prompt, _TOKENS)
    theirs = bare.answer(prompt, _TOKENS)
    return engine.answer(prompt, params).timing, theirs


def _figures(pairs: list[_Both]) -> Figures:
    def per_token(timing: Timing) -> float:
        return timing.decode / (len(timing.tokens) - 1)

    return {
        "decode_speed_against_bare": spread([per_token(theirs) / per_token(ours) for ours, theirs in pairs]),
        "prefill_speed_against_bare": spread([theirs.prefill / ours.prefill for ours, theirs in pairs]),
        "bare_decode_ms": spread([per_token(theirs) * 1e3 for _, theirs in pairs]),
        "forerun_decode_ms": spread([per_token(ours) * 1e3 for ours, _ in pairs]),
        "bare_prefill_ms": spread([theirs.prefill * 1e3 for _, theirs in pairs]),
        "forerun_prefill_ms": spread([ours.prefill * 1e3 for ours, _ in pairs]),
        "prompt_tokens": _PROMPT,
        "threads": _THREADS,
    }
