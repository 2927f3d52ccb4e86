"""A draft that reads the text alone, behind a picture: decode speed against no draft.

FORERUN_TARGET and FORERUN_DRAFT name two Qwen2 files; the target's weights run under M-RoPE, and what it sees is noise
(see pictures.py). Without them tiny models stand in. The bar: never slower than 0.97 of off, and answers are the same.
"""

from __future__ import annotations

from typing import Any

from benchmarks.engine_process import Answer, Pictured, engines, interleaved
from benchmarks.pictures import models
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.core.request import SamplingParams
from forerun.models.resolve import resolve_model
from tests.support.tiny_models import TinyModel, build

_SIDE = 448
"""Pixels: 256 tokens."""
_TASKS = {
    "code": "Write a Python function that returns the n-th Fibonacci number, with a docstring and three examples.",
    "prose": "Tell me a story about a lighthouse keeper who finds a letter.",
}


def run() -> Figures:
    """Paired ratios, above 1 faster than without a draft."""
    use = settings((64, 96), rounds=(3, 3))
    draft = use.draft or str(build(TinyModel(seed=1, vocabulary="smollm2"), resolve_model("smollm2")))
    options = {**use.options, **models(use.target)}
    chosen: dict[str, dict[str, Any]] = {
        "off": {"draft": None, "speculation": 0},
        "auto": {"draft": draft, "speculation": "auto"},
    }
    params = SamplingParams(max_tokens=use.tokens, ignore_eos=True)
    answers: dict[tuple[str, str], list[Answer]] = {(task, name): [] for task in _TASKS for name in chosen}
    with engines(options, chosen) as processes:
        for task, words in _TASKS.items():
            for index, name in interleaved(list(processes), use.rounds):
                answers[task, name].append(processes[name].answer(_prompt(index, words), params))
    return {**use.names, "picture": f"{_SIDE} x {_SIDE}", **_figures(answers)}


def _prompt(seed: int, words: str) -> Pictured:
    return Pictured("<|im_start|>user\n", _SIDE, seed, f" {words}<|im_end|>\n<|im_start|>assistant\n")


def _figures(answers: dict[tuple[str, str], list[Answer]]) -> Figures:
    figures: Figures = {}
    for task in _TASKS:
        pairs = list(zip(answers[task, "auto"], answers[task, "off"], strict=True))
        figures[f"{task}_speed_over_off"] = spread([auto.rate / off.rate for auto, off in pairs])
        figures[f"{task}_ttft_over_off"] = spread([auto.timing.prefill / off.timing.prefill for auto, off in pairs])
        figures[f"{task}_drafted"] = sum(auto.usage.drafted_tokens for auto, _ in pairs)
        figures[f"{task}_accepted"] = sum(auto.usage.accepted_tokens for auto, _ in pairs)
        figures[f"{task}_same_answers"] = sum(auto.timing.tokens == off.timing.tokens for auto, off in pairs)
    return figures
