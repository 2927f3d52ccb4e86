"""docs/speculation.svg: speed of every setting against none, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from forerun.cli.svg import FAINT, INK, Drawing

DRAWING = Path(__file__).parent.parent / "docs" / "speculation.svg"
_WORKLOADS = {"copy": "against_off", "prose": "against_off", "mix": "overall_against_off"}
_COLORS = {"auto": "#1a7f37"}
_FIXED_COLORS = ("#afb8c1", "#8c959f", "#6e7781", "#57606a")
_BAR, _GAP, _HEIGHT, _TOP, _LEFT = 22, 26, 240, 48, 56


def draw_results() -> Path:
    """Draw what benchmarks/results holds of the three workloads; returns the file."""
    groups = [(path.stem, _bars(path)) for name in _WORKLOADS for path in sorted(RESULTS.glob(f"{name}-*.json"))]
    if not groups:
        raise SystemExit("benchmarks: no results to draw; run `python -m benchmarks copy prose mix` first")
    DRAWING.write_text(drawing(groups))
    return DRAWING


def _bars(path: Path) -> dict[str, dict[str, float]]:
    """Median and quartiles by setting."""
    figures: dict[str, Any] = json.loads(path.read_text())["figures"]
    column = _WORKLOADS[figures["workload"]]
    return {name: own[column] for name, own in figures["settings"].items() if name != "off"}


def drawing(groups: list[tuple[str, dict[str, dict[str, float]]]]) -> str:
    """Bars with their quartiles, a group for each workload and model; the line at 1 is plain decoding."""
    highest = max(1.2, *(bar["high"] for _, bars in groups for bar in bars.values())) * 1.05
    width = _LEFT + sum(len(bars) * _BAR + _GAP for _, bars in groups) + 20
    canvas = Drawing(max(width, 420), _TOP + _HEIGHT + 60, "Speed of speculation against none")
    canvas.text((_LEFT, 20), "Speed against no speculation (1 = the same), median and quartiles", size=13)
    _legend(canvas, groups)

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (1 - value / highest)

    for tick in range(int(highest / 0.5) + 1):
        canvas.line([(_LEFT, y(tick / 2)), (width - 10, y(tick / 2))], FAINT)
        canvas.text((_LEFT - 6, y(tick / 2) + 4), f"{tick / 2:.1f}", anchor="end")
    x = _LEFT + _GAP / 2
    for title, bars in groups:
        for index, (name, bar) in enumerate(bars.items()):
            left, middle = x + index * _BAR, x + (index + 0.4) * _BAR
            canvas.rectangle(left, y(bar["median"]), _BAR * 0.8, y(0) - y(bar["median"]), _color(name, bars))
            canvas.line([(middle, y(bar["low"])), (middle, y(bar["high"]))], INK, width=1.5)
        canvas.text((x + len(bars) * _BAR / 2, y(0) + 18 + 14 * (len(title) > 16)), title, anchor="middle", size=11)
        x += len(bars) * _BAR + _GAP
    canvas.line([(_LEFT, y(1)), (width - 10, y(1))], INK, dashed=True)
    return canvas.document()


def _legend(canvas: Drawing, groups: list[tuple[str, dict[str, dict[str, float]]]]) -> None:
    x = float(_LEFT)
    for name in groups[0][1]:
        canvas.rectangle(x, 28, 10, 10, _color(name, groups[0][1]))
        canvas.text((x + 14, 37), name, size=11)
        x += 24 + 7 * len(name)


def _color(name: str, bars: dict[str, dict[str, float]]) -> str:
    fixed = [other for other in bars if other not in _COLORS]
    return _COLORS.get(name) or _FIXED_COLORS[fixed.index(name) % len(_FIXED_COLORS)]
