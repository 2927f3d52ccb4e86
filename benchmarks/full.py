"""How much of what the measured row costs allow is reached when every drafted token is accepted.

Texts are seldom copied without a slip, so acceptance is synthetic here; costs and control are real.
"""

from __future__ import annotations

from typing import Any

from benchmarks.engine_process import Answer, engines, interleaved
from benchmarks.report import Figures, spread
from benchmarks.settings import settings
from benchmarks.speculation import best_at_full_acceptance
from forerun.bench.passages import PROSE
from forerun.core.request import SamplingParams


def run() -> Figures:
    """Auto against off, paired, as a share of max over m of (1 + m) cost(1) / cost(1 + m)."""
    use = settings((160, 128))
    auto: dict[str, Any] = {"speculation": "auto", "synthetic_acceptance": 1.0, "recalibrate": True}
    answers: dict[str, list[Answer]] = {"off": [], "auto": []}
    with engines(use.options, {"off": {"speculation": 0}, "auto": auto}) as processes:
        params = SamplingParams(max_tokens=use.tokens, ignore_eos=True)
        for index, name in interleaved(list(processes), min(use.prompts, 6)):
            answers[name].append(processes[name].answer(PROSE[index], params))
        curves = processes["auto"].curves
    assert curves is not None
    cells = answers["off"][0].usage.prompt_tokens + use.tokens // 2
    length, allowed = best_at_full_acceptance(curves.target, cells)
    ratios = [ours.rate / plain.rate for ours, plain in zip(answers["auto"], answers["off"], strict=True)]
    return {
        "target": use.names["target"],
        "tokens": use.tokens,
        "against_off": spread(ratios),
        "curve_allows": allowed,
        "curve_allows_at": length,
        "share_of_allowed": spread([ratio / allowed for ratio in ratios]),
        "measured_costs": curves.target.as_json(),
    }
