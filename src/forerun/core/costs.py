"""What a step costs, measured: a curve over rows, slopes over used cells, corrected by every step that runs.

The cost of a row is no constant: on one CPU 4 rows cost four times one row and 16 rows little more than 8; on a GPU 8
rows cost what one does. So nothing here knows a formula for rows, only measured points and what lies between them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_BLEND = 0.1
"""Weight of the latest step in how fast the machine is."""
_OWN_BLEND = 0.03
"""The same in what a stretch of rows costs beside that."""
_MOVED = 0.005
"""Of a stretch's own, with each of its steps: after all it was the machine."""
_KEPT = 0.999
"""Of a stretch's own, after each step of another one."""
_LEAST = 0.5
"""A decode over fewer cells than were used in measuring, or with fewer logits, costs at least this share."""
_WILD = 4.0
"""A step this many times slower or faster than predicted was disturbed, or paid for something else: clipped."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Milliseconds of one decode. `ms[i]` belongs to `rows[i]` rows over `cells` used cells; rows ascend from 1.

    `ms_per_kilocell[i]`: what a decode of `rows[i]` rows costs more for every 1,000 used cells (attention walks all of
    them, but how fast depends on the rows); empty where that is not known. All rows have logits, as where drafts are
    verified; one without, as in a prompt, costs `logit_ms` less. Raises ValueError for points that are no curve.
    """

    rows: tuple[int, ...]
    ms: tuple[float, ...]
    ms_per_kilocell: tuple[float, ...] = ()
    cells: int = 0
    logit_ms: float = 0.0

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.ms) or self.rows[0] != 1:
            raise ValueError(f"a curve has a cost for each row count, from 1 on; got {self.rows} and {self.ms}")
        if any(low >= high for low, high in zip(self.rows, self.rows[1:], strict=False)):
            raise ValueError(f"row counts ascend, got {self.rows}")
        if len(self.ms_per_kilocell) not in (0, len(self.rows)):
            raise ValueError(f"{len(self.rows)} row counts, but {len(self.ms_per_kilocell)} costs of cells")
        if min(self.ms) <= 0 or min((*self.ms_per_kilocell, self.logit_ms, self.cells)) < 0:
            raise ValueError("costs are positive")

    def predict(self, rows: int, cells: int = 0, *, logits: int | None = None) -> float:
        """Milliseconds of `rows` rows, `logits` of them with logits (None: all), while `cells` cells are used.
        No rows cost nothing."""
        if rows <= 0:
            return 0.0
        verified = self._verified(rows, cells)
        if logits is None or logits >= rows:
            return verified
        return max(verified - (rows - logits) * self.logit_ms, verified * _LEAST)

    def _verified(self, rows: int, cells: int) -> float:
        at = bisect_left(self.rows, rows)
        if at == len(self.rows):  # beyond the last point: like the last stretch, but no cheaper a row
            return self._point(-1, cells) * rows / self.rows[-1]
        if self.rows[at] == rows:
            return self._point(at, cells)
        low, high = self.rows[at - 1], self.rows[at]
        before = self._point(at - 1, cells)
        return before + (rows - low) / (high - low) * (self._point(at, cells) - before)

    def predict_all(self, rows: NDArray[np.intp], cells: int = 0, *, logits: int | None = None) -> NDArray[np.float64]:
        """The same for many row counts at once (each at least 1)."""
        points = [self._point(at, cells) for at in range(len(self.rows))]
        within: NDArray[np.float64] = np.interp(rows, self.rows, points)
        verified = within * np.maximum(rows / self.rows[-1], 1.0)
        if logits is None or not self.logit_ms:
            return verified
        without: NDArray[np.float64] = verified - np.maximum(rows - logits, 0) * self.logit_ms
        return np.maximum(without, verified * _LEAST)

    def _point(self, at: int, cells: int) -> float:
        ms = self.ms[at]
        if not self.ms_per_kilocell:
            return ms
        return max(ms + self.ms_per_kilocell[at] * (cells - self.cells) / 1000, ms * _LEAST)

    def as_json(self) -> dict[str, Any]:
        slopes = list(self.ms_per_kilocell)
        points = {"rows": list(self.rows), "ms": list(self.ms), "ms_per_kilocell": slopes}
        return {**points, "cells": self.cells, "logit_ms": self.logit_ms}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError or TypeError for anything `as_json` does not write."""
        ms, slopes = (tuple(float(value) for value in values[name]) for name in ("ms", "ms_per_kilocell"))
        rows = tuple(int(row) for row in values["rows"])
        return cls(rows, ms, slopes, int(values["cells"]), float(values.get("logit_ms", 0.0)))


class LiveCosts:
    """A curve that follows the machine, learned from real steps: how fast it is now, and what each stretch between two
    points costs beside that.

    A machine that is busy or throttled is slower everywhere, so that every step tells something of all; what was once
    seen of a stretch alone is forgotten, or rows that seemed dear in a bad moment would never be tried again.
    """

    __slots__ = ("_own", "_speed", "curve")

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self._speed = 1.0
        self._own = [1.0] * len(curve.rows)

    def predict(self, rows: int, cells: int = 0, *, logits: int | None = None) -> float:
        """Milliseconds of a decode, as the machine is now."""
        return self.curve.predict(rows, cells, logits=logits) * self._correction(self._stretch(rows))

    def predict_all(self, rows: NDArray[np.intp], cells: int = 0, *, logits: int | None = None) -> NDArray[np.float64]:
        """The same for many row counts at once (each at least 1)."""
        stretches = np.minimum(np.searchsorted(self.curve.rows, rows), len(self._own) - 1)
        corrections: NDArray[np.float64] = np.array(self._own)[stretches] * self._speed
        return self.curve.predict_all(rows, cells, logits=logits) * corrections

    def observe(self, rows: int, cells: int, ms: float, *, logits: int | None = None) -> None:
        """A decode of `rows` rows over `cells` used cells took `ms`; `logits` of them had logits (None: all)."""
        if rows <= 0 or ms <= 0:
            return
        at = self._stretch(rows)
        ratio = ms / (self.curve.predict(rows, cells, logits=logits) * self._correction(at))
        ratio = min(max(ratio, 1 / _WILD), _WILD)
        own = self._own[at] * ratio**_OWN_BLEND
        self._own = [share**_KEPT for share in self._own]
        self._own[at] = own ** (1 - _MOVED)
        self._speed *= ratio**_BLEND * own**_MOVED

    def _stretch(self, rows: int) -> int:
        return min(bisect_left(self.curve.rows, rows), len(self._own) - 1)

    def _correction(self, stretch: int) -> float:
        return self._speed * self._own[stretch]

    def __repr__(self) -> str:
        return f"LiveCosts(1 row {self.predict(1):.2f} ms, 8 rows {self.predict(8):.2f} ms)"


@dataclass(slots=True)
class StepCosts:
    """What target and draft cost on this machine, as it is now."""

    target: LiveCosts
    draft: LiveCosts | None = None

    def learn_draft(self, rows_by_depth: Sequence[int], cells: int, ms: float) -> None:
        """Drafting took `ms`: one decode for each depth, of so many rows each."""
        if self.draft is None:
            return
        predicted = sum(self.draft.predict(rows, cells) for rows in rows_by_depth)
        for rows in rows_by_depth:
            self.draft.observe(rows, cells, self.draft.predict(rows, cells) * ms / predicted)
