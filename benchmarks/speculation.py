"""Speculation on, off and at fixed lengths: edits that copy, free prose, and a mix of both in eight streams.

Each setting is an engine in a process of its own, asleep while another runs; rounds are interleaved; figures are
medians and quartiles of paired ratios. Prompts go through the chat template, and greedy answers end where the model
ends them.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.engine_process import Answer, Batch, Curves, EngineProcess, engines, interleaved
from benchmarks.replay import Recording, best_copy_ms, plain_ms
from benchmarks.report import Figures, spread
from benchmarks.settings import Settings, settings
from forerun.bench.passages import COPY, EDITS, PROSE, VERBATIM
from forerun.core.costs import CostCurve
from forerun.core.prompt import Tokens
from forerun.core.request import SamplingParams, Usage
from forerun.engine_config import MAX_AUTO_DRAFT_TOKENS
from forerun.models.resolve import resolve_model
from forerun.native.model import LlamaModel

FIXED = tuple(int(length) for length in os.environ.get("FORERUN_FIXED", "2,4,8,16").split(",") if length)
SPECULATION: dict[str, Any] = {"off": 0, "auto": "auto"} | {f"fixed {length}": length for length in FIXED}
"""By lookup alone, but for auto, which drafts with the draft model too where there is one."""
_WITH_DRAFT = FIXED[-1:]
"""Fixed lengths also tried with the draft model, where there is one: of all that were, the longest lost least."""
_STREAMS = 8
_SHORTEST = 16
"""Answers with fewer tokens say nothing about speed."""


def copy() -> Figures:
    """One stream, edits of whole files: against off, the best fixed setting, and what rows cost here."""
    use = settings((400, 400), prompts=(8, 5))
    return _one_stream("copy", EDITS, use, _params(use))


def verbatim() -> Figures:
    """One stream that copies all it says: what is left of what the measured costs of rows allow."""
    use = settings((240, 240))
    model = LlamaModel.load(resolve_model(use.target), vocab_only=True)
    texts = [model.vocabulary.tokenize(text, add_special=True, parse_special=False) for text in VERBATIM]
    model.close()
    return _one_stream("verbatim", texts, use, SamplingParams(max_tokens=use.tokens, ignore_eos=True))


def prose() -> Figures:
    """One stream of prose, where nothing can be copied."""
    use = settings((160, 64))
    return _one_stream("prose", PROSE, use, _params(use))


def mix() -> Figures:
    """Eight streams at once, half of them edits: each stream's own speed, and that of all together."""
    use = settings((96, 48), rounds=(3, 1))  # with 16 drafts each, eight streams take 136 rows a step
    with _engines(use) as processes:
        groups = [_mixed(index) for index in range(use.rounds)]
        batches: dict[str, list[Batch]] = {name: [] for name in processes}
        for index, name in interleaved(list(processes), len(groups)):
            batches[name].append(processes[name].answers(groups[index], _params(use)))
    streams = {name: [answer for batch in own for answer in batch.answers] for name, own in batches.items()}
    overall = {name: [batch.rate for batch in own] for name, own in batches.items()}
    best = _best_static(overall)
    figures: Figures = {**use.names, "workload": "mix", "streams": _STREAMS, "best_static": best, "settings": {}}
    for name, rates in overall.items():
        own = _by_stream(streams[name], streams["off"])
        figures["settings"][name] = {
            "overall_against_off": spread(_ratios(rates, overall["off"])),
            "overall_against_best_static": spread(_ratios(rates, overall[best])),
            "copy_streams_against_off": spread([ratio for at, ratio in own if at % 2 == 0]),
            "prose_streams_against_off": spread([ratio for at, ratio in own if at % 2]),
            "slowest_stream_against_off": min(ratio for _, ratio in own),
            **_receipts(streams[name]),
        }
    return figures


def _mixed(index: int) -> list[str]:
    """Prompts of one round: edits and prose in turn, others each round."""
    half = _STREAMS // 2
    pairs = [(COPY[(index * half + at) % len(COPY)], PROSE[(index * half + at) % len(PROSE)]) for at in range(half)]
    return [prompt for pair in pairs for prompt in pair]


def _best_static(rates: Mapping[str, Sequence[float]]) -> str:
    """The best setting but auto, in hindsight."""
    return max((name for name in rates if name != "auto"), key=lambda name: statistics.median(rates[name]))


def _engines(use: Settings) -> Any:
    return engines(use.options, compared(use.draft))


def compared(draft: str | None) -> dict[str, dict[str, Any]]:
    """Options of every setting: fixed lengths by lookup alone, and with the draft model where there is one."""
    # Costs are measured anew: what auto goes by should be of the same hour as what it is compared with.
    chosen: dict[str, dict[str, Any]] = {name: {"speculation": value} for name, value in SPECULATION.items()}
    chosen["auto"] |= {"draft": draft, "recalibrate": True}
    if draft is not None:
        chosen |= {f"fixed {length}, draft model": {"speculation": length, "draft": draft} for length in _WITH_DRAFT}
    return chosen


def _one_stream(workload: str, prompts: Sequence[str | Tokens], use: Settings, params: SamplingParams) -> Figures:
    with _engines(use) as processes:
        curves = processes["auto"].curves
        answers = _answered(processes, prompts[: use.prompts], params)
    kept = [at for at, answer in enumerate(answers["off"]) if answer.usage.output_tokens >= _SHORTEST]
    answers = {name: [own[at] for at in kept] for name, own in answers.items()}
    rates = {name: [answer.rate for answer in own] for name, own in answers.items()}
    best = _best_static(rates)
    figures: Figures = {**use.names, "workload": workload, "prompts": len(kept), "best_static": best, "settings": {}}
    if workload != "prose" and curves is not None:
        usages = [answer.usage for answer in answers["off"]]
        figures |= _allowed(curves, int(statistics.mean(u.prompt_tokens + u.output_tokens / 2 for u in usages)))
        figures |= _in_hindsight(curves.target, answers)
    for name, own in rates.items():
        figures["settings"][name] = {
            "against_off": spread(_ratios(own, rates["off"])),
            "against_best_static": spread(_ratios(own, rates[best])),
            "ms_a_token": spread([1e3 / rate for rate in own]),
            **_receipts(answers[name]),
        }
    return figures


def _answered(
    processes: Mapping[str, EngineProcess], prompts: Sequence[str | Tokens], params: SamplingParams
) -> dict[str, list[Answer]]:
    answers: dict[str, list[Answer]] = {name: [] for name in processes}
    for index, name in interleaved(list(processes), len(prompts)):
        answers[name].append(processes[name].answer(prompts[index], params))
    return answers


def _params(use: Settings) -> SamplingParams:
    return SamplingParams(max_tokens=use.tokens)


def _ratios(own: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(own, others, strict=True)]


def _by_stream(own: Sequence[Answer], off: Sequence[Answer]) -> list[tuple[int, float]]:
    """Each stream's place in its round, and its speed against the same stream's without speculation."""
    pairs = enumerate(zip(own, off, strict=True))
    return [(at % _STREAMS, one.rate / other.rate) for at, (one, other) in pairs if _is_long(one) and _is_long(other)]


def _is_long(answer: Answer) -> bool:
    return answer.usage.output_tokens >= _SHORTEST


def _receipts(answers: Sequence[Answer]) -> dict[str, object]:
    """What the engine itself says it did, over all answers."""
    usages = [answer.usage for answer in answers]
    drafted, accepted = sum(usage.drafted_tokens for usage in usages), sum(usage.accepted_tokens for usage in usages)
    steps = sum(usage.draft_steps for usage in usages)
    return {
        "output_tokens": sum(usage.output_tokens for usage in usages),
        "drafted": drafted,
        "accepted": accepted,
        "accepted_a_draft": accepted / steps if steps else 0.0,
        "by_drafter": _by_drafter(usages),
        "saved_ms": sum(usage.saved_ms for usage in usages),
    }


def _by_drafter(usages: Sequence[Usage]) -> str:
    """Accepted of drafted tokens by drafter."""
    drafted, accepted = Counter[str](), Counter[str]()
    for usage in usages:
        for name, (proposed, right) in usage.drafters.items():
            drafted[name] += proposed
            accepted[name] += right
    return ", ".join(f"{name} {accepted[name]} of {drafted[name]}" for name in sorted(drafted)) or "-"


def _allowed(curves: Curves, cells: int) -> dict[str, object]:
    """What the measured costs allow over `cells` cells where every drafted token is accepted and drafting is free."""
    length, speed = best_at_full_acceptance(curves.target, cells)
    return {"curve_allows": speed, "curve_allows_at": length, "cells": cells}


def _in_hindsight(curve: CostCurve, answers: Mapping[str, Sequence[Answer]]) -> Figures:
    """What the best copying drafter would reach on the very same answers if it knew them, as the curve says."""
    recordings = [Recording(answer.prompt, answer.timing.tokens) for answer in answers["off"]]
    speeds = [plain_ms(one, curve) / best_copy_ms(one, curve) for one in recordings]
    ratios = _ratios([answer.rate for answer in answers["auto"]], [answer.rate for answer in answers["off"]])
    return {"copying_in_hindsight": spread(speeds), "auto_of_hindsight": spread(_ratios(ratios, speeds))}


def best_at_full_acceptance(curve: CostCurve, cells: int) -> tuple[int, float]:
    """The draft length m with the largest (1 + m) cost(1) / cost(1 + m), and that speed (1.0 = plain)."""
    plain = curve.predict(1, cells)
    speeds = {m: (1 + m) * plain / curve.predict(1 + m, cells) for m in range(1, MAX_AUTO_DRAFT_TOKENS + 1)}
    length = max(speeds, key=lambda m: speeds[m])
    return length, speeds[length]
