"""The same request again: what was answered before is drafted from the index of past outputs.

Stories, in which nothing repeats itself, each asked for three times. Prompts are not reused, so that drafts alone are
measured; speculation is "auto", so that lengths follow what rows cost here.
"""

from __future__ import annotations

from typing import Any

from benchmarks.engine_process import Answer, engines, interleaved
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from forerun.bench.passages import PROSE
from forerun.core.request import SamplingParams

_SETTINGS: dict[str, dict[str, Any]] = {
    "off": {"speculation": 0},
    "without index": {"speculation": "auto", "suffix_tokens": 0},
    "auto": {"speculation": "auto"},
}
_TIMES = 3


def run() -> Figures:
    """Speed against off of the first answer and of the later ones, pairs of the same prompt and round."""
    use = settings((160, 64))
    prompts = [prompt for prompt in PROSE[: min(use.prompts, 6)] for _ in range(_TIMES)]
    params = SamplingParams(max_tokens=use.tokens)
    answers: dict[str, list[Answer]] = {name: [] for name in _SETTINGS}
    with engines(use.options, _SETTINGS) as processes:
        for index, name in interleaved(list(processes), len(prompts)):
            answers[name].append(processes[name].answer(prompts[index], params))
    figures: Figures = {**use.names, "workload": "again", "settings": {}}
    for name in ("without index", "auto"):
        ratios = [own.rate / off.rate for own, off in zip(answers[name], answers["off"], strict=True)]
        later = [answer for index, answer in enumerate(answers[name]) if index % _TIMES]
        by_index = [answer.usage.drafters.get("suffix", (0, 0)) for answer in later]
        figures["settings"][name] = {
            "first_against_off": spread(ratios[::_TIMES]),
            "again_against_off": spread([ratio for index, ratio in enumerate(ratios) if index % _TIMES]),
            "again_tokens": sum(answer.usage.output_tokens for answer in later),
            "again_drafted_from_index": sum(drafted for drafted, _ in by_index),
            "again_accepted_from_index": sum(accepted for _, accepted in by_index),
            "saved_ms": [round(answer.usage.saved_ms) for answer in answers[name]],
        }
    return figures
