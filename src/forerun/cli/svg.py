"""Just enough SVG for a chart: https://www.w3.org/TR/SVG11/. Coordinates are pixels from the top left corner."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]

INK = "#24292f"
FAINT = "#d0d7de"


class Drawing:
    """Collects shapes in the order they are painted."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width = width
        self._height = height
        self._title = title
        self._shapes: list[str] = []

    def rectangle(self, x: float, y: float, width: float, height: float, color: str) -> None:
        self._shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>')

    def line(self, points: Sequence[Point], color: str, *, width: float = 1.0, dashed: bool = False) -> None:
        """A line through all points."""
        dashes = ' stroke-dasharray="6 4"' if dashed else ""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(
            f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width:g}"{dashes}/>'
        )

    def dot(self, at: Point, color: str) -> None:
        self._shapes.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3" fill="{color}"/>')

    def text(
        self, at: Point, text: str, *, anchor: str = "start", color: str = INK, size: int = 12, turned: bool = False
    ) -> None:
        """One line of text; `anchor` (start, middle, end) is the part of it that lies at the point. Turned: upwards."""
        turn = f' transform="rotate(-90 {at[0]:.1f} {at[1]:.1f})"' if turned else ""
        self._shapes.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}"{turn}>'
            f"{escape(text)}</text>"
        )

    def document(self) -> str:
        """The file's text."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width}" height="{self._height}" '
                f'viewBox="0 0 {self._width} {self._height}" font-family="sans-serif" role="img">',
                f"<title>{escape(self._title)}</title>",
                f'<rect width="{self._width}" height="{self._height}" fill="white"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )
