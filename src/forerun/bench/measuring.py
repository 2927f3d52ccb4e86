"""What was measured while a workload ran on one server, and the figures that follow."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from forerun.bench.reading import Answer

Figures = dict[str, float]
"""Names to numbers; the unit is the end of the name: _ms, _s, _per_s, _mb, _tokens."""
MORE_IS_BETTER: Final = frozenset({"tokens_per_s", "decode_per_s", "prompt_per_s", "kept_share"})
"""Of all other figures less is better."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a workload on one server; what it does to prepare is left out."""

    answers: tuple[Answer, ...]
    seconds: float
    """From the first request to the end of the last answer."""
    evaluated: int | None = None
    """Prompt tokens that the server computed meanwhile, by its own count; None where it does not say."""
    server_cpu: float | None = None
    """Seconds, of all its processes."""
    server_resident: int | None = None
    """Bytes, at the end."""
    client_cpu: float = 0.0
    """Seconds of the program that measures: where it is much, it took it from a server on the same machine."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Figures that only the workload knows."""


@dataclass(frozen=True, slots=True)
class Work:
    """What was asked of a server and done: has to be the same on both sides of a ratio. None: not known."""

    prompt_tokens: int | None
    output_tokens: int


def work_of(measured: Measurement) -> Work:
    """All tokens of prompts and answers. Those of answers that were left early do not count."""
    whole = [answer for answer in measured.answers if answer.finish]
    prompts = [answer.counts.prompt for answer in whole]
    known = [count for count in prompts if count is not None]
    return Work(sum(known) if len(known) == len(prompts) else None, sum(answer.output_tokens for answer in whole))


def figures_of(measured: Measurement) -> Figures:
    """Of all answers together and, where there are several labels, of each label's: `newcomer ttft_ms`."""
    answers = measured.answers
    figures = _timing(answers) | _totals(measured)
    labels = sorted({answer.label for answer in answers if answer.label})
    if len(labels) > 1:
        for label in labels:
            own = _timing([answer for answer in answers if answer.label == label])
            figures |= {f"{label} {name}": value for name, value in own.items()}
    return figures | dict(measured.extra)


def _timing(answers: Sequence[Answer]) -> Figures:
    gaps = [gap * 1e3 for answer in answers for gap in answer.gaps]
    ttft = _known(answer.ttft for answer in answers)
    rates = _known(answer.decode_rate for answer in answers)
    figures: Figures = {}
    _put(figures, "ttft_ms", [one * 1e3 for one in ttft], statistics.median)
    _put(figures, "ttft_p95_ms", [one * 1e3 for one in ttft], p95)
    _put(figures, "itl_p50_ms", gaps, statistics.median)
    _put(figures, "itl_p95_ms", gaps, p95)
    _put(figures, "largest_gap_ms", gaps, max)
    _put(figures, "e2e_ms", [(answer.ended - answer.began) * 1e3 for answer in answers], statistics.median)
    _put(figures, "decode_per_s", rates, statistics.median)
    _put(figures, "prompt_per_s", _prompt_rates(answers), statistics.median)
    return figures


def _totals(measured: Measurement) -> Figures:
    answers, work = measured.answers, work_of(measured)
    figures: Figures = {"wall_s": measured.seconds, "output_tokens": work.output_tokens}
    if measured.seconds > 0:
        figures["tokens_per_s"] = sum(answer.output_tokens for answer in answers) / measured.seconds
    if work.prompt_tokens is not None:
        figures["prompt_tokens"] = work.prompt_tokens
    cached = [answer.counts.cached for answer in answers]
    if measured.evaluated is not None:
        figures["evaluated_tokens"] = measured.evaluated
    elif work.prompt_tokens is not None and all(count is not None for count in cached):
        figures["evaluated_tokens"] = work.prompt_tokens - sum(count or 0 for count in cached)
    figures["drafted_tokens"] = sum(answer.counts.drafted for answer in answers)
    figures["accepted_tokens"] = sum(answer.counts.accepted for answer in answers)
    if measured.server_cpu is not None:
        figures["server_cpu_s"] = measured.server_cpu
    if measured.server_resident is not None:
        figures["server_rss_mb"] = measured.server_resident / 1e6
    figures["client_cpu_s"] = measured.client_cpu
    return figures


def _prompt_rates(answers: Sequence[Answer]) -> list[float]:
    """Prompt tokens over the time to the first token: what the server did in that time, reuse included."""
    return [answer.counts.prompt / answer.ttft for answer in answers if answer.counts.prompt and answer.ttft]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _put(figures: Figures, name: str, values: Sequence[float], of: Callable[[Sequence[float]], float]) -> None:
    if values:
        figures[name] = of(values)


def p95(values: Sequence[float]) -> float:
    """The smallest value that 95 of 100 do not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * 95 // 100) - 1, 0)]
