"""One stream through the whole engine against the bare loop, same model, same run, interleaved A B B A."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.bare import BareProcess, BareSettings, Timing
from benchmarks.report import spread
from forerun.compose import Engine
from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams
from forerun.models.resolve import resolve_model

_THREADS = 2
_PROMPT = 1024
_TOKENS = 96
_ROUNDS = 12
_CONTEXT = 2048
_BATCH = 512


def run(model: str = "smollm2", rounds: int = _ROUNDS) -> dict[str, object]:
    """Ratios of speed, 1.0 = the bare loop; the engine's time includes its thread and the hand-over of each token."""
    options: dict[str, Any] = {
        "n_ctx": _CONTEXT,
        "n_threads": _THREADS,
        "max_num_batched_tokens": _BATCH,
        "reuse_prefixes": False,
    }
    settings = BareSettings(resolve_model(model), _CONTEXT, _BATCH, _THREADS)
    with Engine.load(model, **options) as engine, BareProcess(settings) as bare:
        rng = np.random.default_rng(0)
        pairs: list[tuple[Timing, Timing]] = []
        for index in range(-1, rounds):
            prompt = rng.integers(1000, 40_000, _PROMPT).astype(np.int32)
            pair = _both(engine, bare, prompt, engine_first=index % 2 == 0)
            if index >= 0:  # the first round warms both up
                pairs.append(pair)
    return _figures(pairs)


def _both(engine: Engine, bare: BareProcess, prompt: Tokens, *, engine_first: bool) -> tuple[Timing, Timing]:
    if engine_first:
        ours = through_engine(engine, prompt)
        return ours, bare.answer(prompt, _TOKENS)
    theirs = bare.answer(prompt, _TOKENS)
    return through_engine(engine, prompt), theirs


def through_engine(engine: Engine, prompt: Tokens) -> Timing:
    """What a caller sees: from the call to the first token, and from there to the last one."""
    params = SamplingParams(max_tokens=_TOKENS)
    tokens: list[int] = []
    started = first = time.perf_counter()
    for output in engine.stream(prompt, params):
        if not tokens:
            first = time.perf_counter()
        tokens.extend(output.token_ids)
    return Timing(first - started, time.perf_counter() - first, tuple(tokens))


def _figures(pairs: list[tuple[Timing, Timing]]) -> dict[str, object]:
    # An answer may end early at the model's end of turn: compare time a token.
    def per_token(timing: Timing) -> float:
        return timing.decode / max(len(timing.tokens) - 1, 1)

    usable = [(ours, theirs) for ours, theirs in pairs if len(ours.tokens) > _TOKENS // 2]
    return {
        "decode_speed_against_bare": spread([per_token(theirs) / per_token(ours) for ours, theirs in usable]),
        "prefill_speed_against_bare": spread([theirs.prefill / ours.prefill for ours, theirs in pairs]),
        "bare_decode_ms": spread([per_token(theirs) * 1e3 for _, theirs in usable]),
        "forerun_decode_ms": spread([per_token(ours) * 1e3 for ours, _ in usable]),
        "bare_prefill_ms": spread([theirs.prefill * 1e3 for _, theirs in pairs]),
        "forerun_prefill_ms": spread([ours.prefill * 1e3 for ours, _ in pairs]),
        "prompt_tokens": _PROMPT,
        "threads": _THREADS,
    }
