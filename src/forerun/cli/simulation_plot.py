"""A simulation as a drawing: by load, times to the first token and what is answered; one run by time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from forerun.cli.axes import LinearAxis, LogAxis, linear_ticks, log_ticks
from forerun.cli.svg import FAINT, INK, Drawing, Point
from forerun.simulation.loads import LoadOutcome, Study
from forerun.simulation.outcome import Moment

_WIDTH, _HEIGHT = 760, 720
_LEFT, _RIGHT = 72, 736
_UPPER, _LOWER = (60, 340), (420, 660)
"""Top and bottom of the two charts."""
_COLORS = ("#0969da", "#bf3989", "#1a7f37", "#9a6700", "#8250df", "#cf222e")
_LEAST_MS = 1.0


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    points: Sequence[Point]
    dashed: bool = False


def study_plot(found: Study) -> str:
    """An SVG. Several loads: 95th percentile of the time to the first token by group, and tokens a second of finished
    answers, over the load. One: requests that run and wait, and tokens a second, over time."""
    if len(found.outcomes) > 1:
        drawing = Drawing(_WIDTH, _HEIGHT, "Times to the first token and answers, by load")
        _draw_loads(drawing, found)
    else:
        drawing = Drawing(_WIDTH, _HEIGHT, "Requests and answers over time")
        _draw_time(drawing, found.outcomes[0])
    return drawing.document()


def _draw_loads(drawing: Drawing, found: Study) -> None:
    loads = [one.load for one in found.outcomes]
    x = LinearAxis(0, loads[-1], _LEFT, _RIGHT)
    names = [group.name for group in found.outcomes[0].outcome.groups]
    ttft = [
        _Line(name, [(one.load, max(one.outcome.group(name).ttft.p95 * 1e3, _LEAST_MS)) for one in found.outcomes])
        for name in names
    ]
    values = [ms for line in ttft for _, ms in line.points]
    low, high = min(values) / 1.3, max(values) * 1.3
    _chart(drawing, _UPPER, "95 of 100 first tokens come within (ms)", LogAxis(low, high, _UPPER[1], _UPPER[0]),
           log_ticks(low, high), x, ttft)  # fmt: skip
    goodput = [
        _Line("answered", [(0.0, 0.0), *((one.load, one.outcome.goodput) for one in found.outcomes)]),
        _Line("the most the engine gives", [(0.0, found.capacity), (loads[-1], found.capacity)], dashed=True),
    ]
    most = max(found.capacity, *(one.outcome.goodput for one in found.outcomes)) * 1.1
    _chart(drawing, _LOWER, "tokens a second of finished answers", LinearAxis(0, most, _LOWER[1], _LOWER[0]),
           linear_ticks(most), x, goodput)  # fmt: skip
    _x_axis(drawing, x, linear_ticks(loads[-1]), "tokens asked for, as a multiple of the most the engine gives")


def _draw_time(drawing: Drawing, one: LoadOutcome) -> None:
    moments = one.outcome.timeline
    end = max(moments[-1].at, 1.0)
    x = LinearAxis(0, end, _LEFT, _RIGHT)
    requests = [
        _Line("running", [(moment.at, moment.running) for moment in moments]),
        _Line("waiting", [(moment.at, moment.waiting) for moment in moments]),
    ]
    most = max(1.0, *(value for line in requests for _, value in line.points)) * 1.1
    _chart(drawing, _UPPER, "requests", LinearAxis(0, most, _UPPER[1], _UPPER[0]), linear_ticks(most), x, requests)
    rates = _rates(moments)
    most = max(1.0, *(value for _, value in rates)) * 1.1
    answers = [_Line("tokens a second", rates)]
    _chart(
        drawing, _LOWER, "tokens a second", LinearAxis(0, most, _LOWER[1], _LOWER[0]), linear_ticks(most), x, answers
    )
    _x_axis(drawing, x, linear_ticks(end), "seconds")


def _rates(moments: Sequence[Moment]) -> list[Point]:
    pairs = pairwise(moments)
    return [(after.at, (after.tokens - before.tokens) / max(after.at - before.at, 1e-9)) for before, after in pairs]


def _chart(
    drawing: Drawing,
    place: tuple[int, int],
    title: str,
    y: Callable[[float], float],
    ticks: Sequence[float],
    x: Callable[[float], float],
    lines: Sequence[_Line],
) -> None:
    top, bottom = place
    for tick in ticks:
        drawing.line([(_LEFT, y(tick)), (_RIGHT, y(tick))], FAINT)
        drawing.text((_LEFT - 8, y(tick) + 4), f"{tick:g}", anchor="end")
    drawing.line([(_LEFT, top), (_LEFT, bottom), (_RIGHT, bottom)], INK)
    drawing.text((20, (top + bottom) / 2), title, anchor="middle", turned=True)
    for index, line in enumerate(lines):
        color = INK if line.dashed else _COLORS[index % len(_COLORS)]
        drawing.line([(x(at), y(value)) for at, value in line.points], color, width=2, dashed=line.dashed)
        left = _LEFT + 8 + 160 * (index % 4)
        drawing.line([(left, top - 14), (left + 24, top - 14)], color, width=2, dashed=line.dashed)
        drawing.text((left + 30, top - 10), line.name)


def _x_axis(drawing: Drawing, x: Callable[[float], float], ticks: Sequence[float], title: str) -> None:
    for tick in ticks:
        drawing.text((x(tick), _LOWER[1] + 18), f"{tick:g}", anchor="middle")
    drawing.text(((_LEFT + _RIGHT) / 2, _HEIGHT - 16), title, anchor="middle")
