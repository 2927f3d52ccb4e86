"""Cost curves as a drawing: what a decode takes by rows, and what as many plain steps would take."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.cli.axes import LogAxis, log_ticks
from forerun.cli.svg import FAINT, INK, Drawing, Point
from forerun.core.costs import CostCurve

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 736, 92, 424
_COLORS = ("#0969da", "#bf3989")
_BOTH_COLOR = "#1a7f37"


def curve_plot(curves: Sequence[tuple[str, CostCurve]]) -> str:
    """An SVG of the target's curve and, where there is one, the draft's.

    Above the dashed line a decode takes longer than as many plain steps of the target: drafts that fill it cannot pay,
    even if all of them are accepted. With a draft model the line that counts is that of both together, which has one
    draft decode for each row but the last.
    """
    (target_name, target), *drafts = curves
    lines = [(name, _points(curve)) for name, curve in curves]
    lines += [(f"{target_name} after drafting", _together(target, draft)) for _, draft in drafts]
    break_even = [(float(rows), rows * target.predict(1)) for rows in target.rows]
    values = [ms for _, points in [*lines, ("", break_even)] for _, ms in points]
    x = LogAxis(1, max(max(curve.rows[-1] for _, curve in curves), 2), _LEFT, _RIGHT)
    y = LogAxis(min(values) / 1.3, max(values) * 1.3, _BOTTOM, _TOP)
    drawing = Drawing(_WIDTH, _HEIGHT, f"What decodes of {target_name} cost")
    _axes(drawing, x, y, max(curve.rows[-1] for _, curve in curves), (min(values) / 1.3, max(values) * 1.3))
    drawing.line([(x(rows), y(ms)) for rows, ms in break_even], INK, dashed=True)
    _key(drawing, 0, INK, f"break-even: as many plain steps of {target_name}", dashed=True)
    for index, (name, points) in enumerate(lines):
        color = _COLORS[index] if index < len(curves) else _BOTH_COLOR
        places = [(x(rows), y(ms)) for rows, ms in points]
        drawing.line(places, color, width=2)
        for place in places:
            drawing.dot(place, color)
        _key(drawing, index + 1, color, name)
    return drawing.document()


def _points(curve: CostCurve) -> list[Point]:
    return [(float(rows), ms) for rows, ms in zip(curve.rows, curve.ms, strict=True)]


def _together(target: CostCurve, draft: CostCurve) -> list[Point]:
    return [(float(rows), target.predict(rows) + (rows - 1) * draft.predict(1)) for rows in target.rows]


def _axes(drawing: Drawing, x: LogAxis, y: LogAxis, most_rows: int, ms: tuple[float, float]) -> None:
    for rows in (2**power for power in range(most_rows.bit_length())):
        drawing.line([(x(rows), _TOP), (x(rows), _BOTTOM)], FAINT)
        drawing.text((x(rows), _BOTTOM + 18), str(rows), anchor="middle")
    for tick in log_ticks(*ms):
        drawing.line([(_LEFT, y(tick)), (_RIGHT, y(tick))], FAINT)
        drawing.text((_LEFT - 8, y(tick) + 4), f"{tick:g}", anchor="end")
    drawing.line([(_LEFT, _TOP), (_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)], INK)
    drawing.text(
        ((_LEFT + _RIGHT) / 2, _HEIGHT - 16), "rows of one decode (tokens evaluated together)", anchor="middle"
    )
    drawing.text((20, (_TOP + _BOTTOM) / 2), "time of one decode (ms)", anchor="middle", turned=True)


def _key(drawing: Drawing, index: int, color: str, text: str, *, dashed: bool = False) -> None:
    at = 20 + 18 * index
    drawing.line([(_LEFT, at), (_LEFT + 28, at)], color, width=1 if dashed else 2, dashed=dashed)
    drawing.text((_LEFT + 36, at + 4), text)
