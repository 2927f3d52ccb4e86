"""Speculation on against off: copying and free prose, one stream, every setting in a process of its own, interleaved.

The settings are off, automatic, and fixed lengths (the sweep that automatic is compared with). A model pair comes from
the environment: FORERUN_TARGET and FORERUN_DRAFT; without it SmolLM2 drafts by n-gram alone.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from benchmarks.engine_process import Answer, EngineProcess
from benchmarks.report import spread
from forerun.core.request import SamplingParams

_TOKENS = 160
_ROUNDS = 5
_SETTINGS: dict[str, Any] = {"off": 0, "auto": "auto", "fixed 2": 2, "fixed 4": 4, "fixed 8": 8, "fixed 16": 16}

_TEXT = (
    "The lighthouse stands on a narrow point of rock about two miles north of the harbour. It was built in 1871 by a "
    "company from the mainland and has been kept by the same family ever since. Every evening at dusk the keeper "
    "climbs the one hundred and twelve steps to the lantern room, trims the wick, winds the clockwork and opens the "
    "shutters. On clear nights the beam can be seen from the hills behind the town, and on foggy ones the bell is rung "
    "by hand every half minute. The oldest of the keepers, who is now ninety-one, says that the sea has not been the "
    "same since the new breakwater came."
)

WORKLOADS = {
    "copy": [f"Repeat this text word for word, and nothing else:\n\n{_TEXT}"] * _ROUNDS,
    "prose": [
        f"Write a short story about {subject}. Use vivid language and do not repeat yourself."
        for subject in ("a clockmaker", "two rivers", "a lost letter", "the last tram", "an island of cats")
    ],
}


def run() -> dict[str, object]:
    """Speed against off (1.0 = off), by workload and setting: medians over rounds of paired ratios."""
    target, draft = os.environ.get("FORERUN_TARGET", "smollm2"), os.environ.get("FORERUN_DRAFT")
    options = {"model": target, "draft": draft, "n_ctx": 2048, "n_threads": 2, "reuse_prefixes": False}
    figures: dict[str, object] = {"target": os.path.basename(target), "draft": os.path.basename(draft or "")}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(EngineProcess({**options, "speculation": setting}))
            for name, setting in _SETTINGS.items()
        }
        for workload, prompts in WORKLOADS.items():
            runs = _interleaved(engines, prompts)
            for name in _SETTINGS:
                figures |= _figures(workload, name, runs)
    return figures


def _interleaved(engines: dict[str, EngineProcess], prompts: list[str]) -> dict[str, list[Answer]]:
    params = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)
    runs: dict[str, list[Answer]] = {name: [] for name in engines}
    for index, prompt in enumerate(prompts):
        order = list(engines) if index % 2 else list(engines)[::-1]
        for name in order:
            runs[name].append(engines[name].answer(prompt, params))
    return runs


def _figures(workload: str, name: str, runs: dict[str, list[Answer]]) -> dict[str, object]:
    ratios = [own.rate / off.rate for own, off in zip(runs[name], runs["off"], strict=True)]
    last = runs[name][-1].usage
    figures: dict[str, object] = {f"{workload} {name}: speed against off": spread(ratios)}
    if name == "off":
        return {f"{workload} off: ms a token": spread([1e3 / run.rate for run in runs[name]])}
    figures[f"{workload} {name}: accepted of drafted (last)"] = f"{last.accepted_tokens} of {last.drafted_tokens}"
    return figures
