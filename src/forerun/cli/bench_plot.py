"""Results of `forerun bench` as drawings: one figure of every server, and all ratios with their intervals."""

from __future__ import annotations

import statistics
from typing import Final

from forerun.bench.ratios import Ratio, interval
from forerun.bench.results import Comparison, WorkloadResult
from forerun.cli.axes import LinearAxis, LogAxis, linear_ticks, log_ticks
from forerun.cli.svg import FAINT, INK, Drawing

_WIDTH: Final = 760
_LEFT, _RIGHT, _TOP, _ROW = 220, 720, 56, 34
_COLORS: Final = ("#0969da", "#bf3989", "#1a7f37", "#9a6700", "#8250df", "#cf222e")
_BAR: Final = 16


def workload_plot(one: WorkloadResult) -> str:
    """A bar for each server: the median of its rounds, with the interval of that median."""
    systems = sorted({name for both in one.rounds for name in both})
    values = {name: found for name in systems if (found := one.values(name, one.primary))}
    height = _TOP + _ROW * len(values) + 56
    drawing = Drawing(_WIDTH, height, f"{one.title}: {one.primary}")
    drawing.text((_LEFT, 28), f"{one.title}: {one.primary.replace('_', ' ')}", size=14)
    x = LinearAxis(0, max(max(found) for found in values.values()) * 1.05, _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(values)
    for tick in linear_ticks(max(max(found) for found in values.values()) * 1.05):
        drawing.line([(x(tick), _TOP), (x(tick), bottom)], FAINT)
        drawing.text((x(tick), bottom + 18), f"{tick:g}", anchor="middle")
    for index, (name, found) in enumerate(values.items()):
        middle = _TOP + _ROW * index + _ROW / 2
        median = statistics.median(found)
        drawing.rectangle(_LEFT, middle - _BAR / 2, x(median) - _LEFT, _BAR, _COLORS[index % len(_COLORS)])
        low, high = interval(found)
        drawing.line([(x(low), middle), (x(high), middle)], INK, width=2)
        drawing.text((_LEFT - 8, middle + 4), name, anchor="end")
    return drawing.document()


def ratio_plot(found: Comparison) -> str:
    """A row for each workload: how many times as good the subject is as each other server, right of the line better."""
    others = [one.name for one in found.systems if one.name != found.subject]
    rows = [(one.title, [one.ratio(found.subject, other) for other in others]) for one in found.workloads]
    known = [ratio for _, ratios in rows for ratio in ratios if isinstance(ratio, Ratio)]
    low = min([0.5, *(ratio.low for ratio in known)]) / 1.1
    high = max([2.0, *(ratio.high for ratio in known)]) * 1.1
    top = _TOP + 20 * len(others)
    bottom = top + _ROW * len(rows)
    drawing = Drawing(_WIDTH, bottom + 56, f"{found.subject} against the others")
    drawing.text((_LEFT, 28), f"{found.subject}: how many times as good, by each workload's figure", size=14)
    x = LogAxis(low, high, _LEFT, _RIGHT)
    for tick in log_ticks(low, high):
        drawing.line([(x(tick), top), (x(tick), bottom)], FAINT)
        drawing.text((x(tick), bottom + 18), f"{tick:g}", anchor="middle")
    drawing.line([(x(1), top), (x(1), bottom)], INK, width=2)
    for index, other in enumerate(others):
        drawing.dot((_LEFT + 6, 46 + 20 * index), _COLORS[index % len(_COLORS)])
        drawing.text((_LEFT + 16, 50 + 20 * index), f"against {other}")
    for at, (title, ratios) in enumerate(rows):
        drawing.text((_LEFT - 8, top + _ROW * at + _ROW / 2 + 4), title, anchor="end")
        for index, ratio in enumerate(ratios):
            if isinstance(ratio, Ratio):
                middle = top + _ROW * at + _ROW * (index + 1) / (len(ratios) + 1)
                color = _COLORS[index % len(_COLORS)]
                drawing.line([(x(ratio.low), middle), (x(ratio.high), middle)], color, width=2)
                drawing.dot((x(ratio.median), middle), color)
    return drawing.document()
