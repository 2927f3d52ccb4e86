"""Pictures: what later turns over one cost, what the same one costs elsewhere, and what others notice of its encoding.

Needs a Qwen2 model, whose weights are run under M-RoPE with a random projector of one layer: what is said of a picture
is noise, while preprocessing, encoding, rows and positions are real (FORERUN_TARGET=qwen-1.5b.gguf). Without it a tiny
model stands in. The bar: turns after the first take under 30% of its time to the first token.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.compose import Engine
from forerun.core.prompt_text import PromptText
from forerun.core.request import SamplingParams
from forerun.engine.output import Output
from forerun.media.picture import Picture
from forerun.models.resolve import resolve_model
from tests.support.relabelled import relabelled, width_of
from tests.support.tiny_models import MODELS_FOLDER, TinyModel, build
from tests.support.tiny_projector import TinyProjector, build_projector

_SIDE = 1024
"""Pixels: 1,369 tokens."""
_NO_QWEN = "smollm2"
"""What benchmarks run on where nothing else is said: not a Qwen2 model."""
_QUESTIONS = ("What is this?", "And what else is there to be seen?", "Which colour is it mostly?")


def run() -> Figures:
    """Times in milliseconds."""
    use = settings((24, 24), rounds=(3, 2))
    target_ms = use.options["target_itl_ms"]
    options = {"n_ctx": 4096, "n_threads": 2, "target_itl_ms": target_ms, **models(use.target)}
    turns: list[list[float]] = []
    elsewhere: list[float] = []
    for number in range(use.rounds):
        with _engine(options) as engine:
            turns.append(_turns(engine, number, use.tokens))
            elsewhere.append(_first_ms(engine, "Somewhere else: ", _picture(number), _QUESTIONS[0]))
    with _engine(options) as engine:
        alone, beside = _gaps_ms(engine, None), _gaps_ms(engine, _picture(99))
    return {
        **use.names,
        **({"target": "tiny-qwen2vl", "draft": ""} if use.target == _NO_QWEN else {}),
        "picture": f"{_SIDE} x {_SIDE}",
        **{f"ttft_ms_turn_{turn}": spread(list(times)) for turn, times in enumerate(zip(*turns, strict=True), 1)},
        "ttft_of_later_turns_over_the_first": spread([max(times[1:]) / times[0] for times in turns]),
        "ttft_ms_elsewhere": spread(elsewhere),
        "target_itl_ms": target_ms,
        "longest_gap_of_a_stream_ms_alone": alone,
        "longest_gap_of_a_stream_ms_while_a_picture_is_read": beside,
    }


def models(target: str) -> dict[str, Any]:
    if target == _NO_QWEN:
        tiny = build(TinyModel(kind="qwen2vl"), resolve_model("smollm2"))
        return {"model": str(tiny), "projector": str(build_projector(TinyProjector()))}
    path = Path(target)
    projector = build_projector(TinyProjector(width=width_of(path), scale=0.02))
    draft, model = os.environ.get("FORERUN_DRAFT"), relabelled(path, MODELS_FOLDER)
    return {"model": str(model), "projector": str(projector), "draft": draft, "speculation": "auto" if draft else 0}


@contextmanager
def _engine(options: dict[str, Any]) -> Iterator[Engine]:
    with Engine.load(**options) as engine:
        list(engine.generate("Hello", SamplingParams(max_tokens=2)))
        yield engine


def _picture(seed: int) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, 3 * _SIDE * _SIDE, dtype=np.uint8)
    return Picture.of(_SIDE, _SIDE, pixels.tobytes())


def _turns(engine: Engine, seed: int, tokens: int) -> list[float]:
    said, times = "", []
    for question in _QUESTIONS:
        said += f" {question} "
        started, text = time.perf_counter(), ""
        for output in _answer(engine, "Look: ", _picture(seed), said, tokens):
            if not text:
                times.append((time.perf_counter() - started) * 1e3)
            text += output.text or " "
        said += text
    return times


def _first_ms(engine: Engine, before: str, picture: Picture, after: str) -> float:
    started = time.perf_counter()
    next(_answer(engine, before, picture, after, 1))
    return (time.perf_counter() - started) * 1e3


def _answer(engine: Engine, before: str, picture: Picture, after: str, tokens: int) -> Iterator[Output]:
    prompt = engine.prompt(PromptText(before + after, media=((len(before), 0),)), media=[picture])
    return engine.stream(prompt, SamplingParams(max_tokens=tokens, ignore_eos=True))


def _gaps_ms(engine: Engine, picture: Picture | None) -> float:
    """The longest wait for a token of an answer; a picture comes when it has begun."""
    reading: threading.Thread | None = None
    longest, last = 0.0, 0.0
    for number, _ in enumerate(engine.stream("Tell me a story.", SamplingParams(max_tokens=160, ignore_eos=True))):
        now = time.perf_counter()
        if number == 16 and picture is not None:
            reading = threading.Thread(target=_first_ms, args=(engine, "See: ", picture, "What?"))
            reading.start()
        longest = max(longest, (now - last) * 1e3) if number > 8 else 0.0
        last = now
    if reading is not None:
        reading.join()
    return longest
