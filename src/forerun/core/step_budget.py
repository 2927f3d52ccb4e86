"""How much a step may do while others wait for their next token: what keeps it within the target inter-token latency.

    a step   [ copies | drafting, filling | decode rows, drafts | prefill rows ]  AIM
             └──────────────────────── target_ms ────────────────────────────────┘

Everything is counted in predicted milliseconds, and what is left of the target, less a margin, goes to prompts as rows.
Nobody waits where nothing decodes: then a step is as large as a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun.core.costs import CostCurve, LiveCosts
from forerun.core.planner import OTHERS_SHARE, PrefillDemand
from forerun.core.step import StepPlan, StepTimes, media_rows, prompt_rows

SHORTEST_TARGET_MS = 50.0
"""20 tokens a second are fast enough for anybody who reads."""
READING_MS = 250.0
"""A token in that time is about as fast as people read."""
AIM = 0.95
"""Steps are planned to take this share of the target: some take longer than predicted."""
_CHEAP, _BEARABLE = 1.25, 1.6
"""Rows cost at most so many times what the cheapest cost."""
_PREFILL_SHARE = 0.25
"""Prompts may make a step longer by this share of what decodes alone take, whatever the target: they have to go on."""
_PATIENCE = 3.0
"""Answers of a lower priority put up with so many times the target while a more urgent prompt is read."""
_STRETCH = 1.25
"""Urgent answers, with so many times the target where the rest of an equally urgent prompt is read by that."""
_BLEND = 0.3
_TINY_MS = 1e-6
_WILD = 16.0
"""An image that seems to cost so many times its rows was disturbed, or paid for something else: clipped."""


def default_target_ms(curve: CostCurve, batch: int) -> float:
    """The inter-token latency to keep to where nobody says: small steps cost more a row (decision 23).

    Where a whole batch of `batch` rows takes longer than readers bear: what they bear, unless rows would be much dearer
    then. Else the shortest step that computes rows about as cheaply as any; nothing is gained below SHORTEST_TARGET_MS.
    """
    if curve.predict(batch, logits=1) > READING_MS:
        return max(READING_MS, _shortest_step(curve, _BEARABLE))
    return max(SHORTEST_TARGET_MS, _shortest_step(curve, _CHEAP))


def _shortest_step(curve: CostCurve, factor: float) -> float:
    """Milliseconds of the shortest step of a prompt whose rows cost at most `factor` times what the cheapest cost."""
    steps = [(rows, curve.predict(rows, curve.cells, logits=1)) for rows in curve.rows]
    most = factor * min(ms / rows for rows, ms in steps)
    return min(ms for rows, ms in steps if ms / rows <= most)


@dataclass(frozen=True, slots=True)
class StepSoFar:
    """What a step holds before prompts get their rows."""

    rows: int
    """Decode and draft rows."""
    cells: int
    """Used cells of the target's memory."""
    is_waited_for: bool
    """Whether somebody's next token waits for the step to end: its own decode rows, or others'."""
    other_ms: float = 0.0
    """What it does beside the target's decode: copies, drafting, filling the draft's memory."""
    turns: int = 1
    """Sets of adapters that take turns: a token comes every so many steps."""
    priority: int | None = None
    """The highest of those who wait; None where nobody does, or it does not matter."""
    lowest_priority: int | None = None
    """The lowest of those who wait."""

    def plus(self, *, rows: int = 0, ms: float = 0.0) -> StepSoFar:
        """With so many more draft rows, and other work that takes so long."""
        if not rows and not ms:
            return self
        return replace(self, rows=self.rows + rows, other_ms=self.other_ms + ms)


class StepBudget:
    """Turns a target latency into rows. Without `costs` a step beside decodes holds `rows_beside_decode`, a guess.

    Teaches the costs what steps take, and remembers what media turned out to cost.
    """

    def __init__(
        self, costs: LiveCosts | None, target_ms: float | None, *, max_rows: int, rows_beside_decode: int
    ) -> None:
        """`target_ms` None: the default for the costs' curve and batches of `max_rows`."""
        if min(max_rows, rows_beside_decode) < 1:
            raise ValueError(
                f"row limits are positive, got max_rows={max_rows}, rows_beside_decode={rows_beside_decode}"
            )
        self._costs = costs
        self._max_rows = max_rows
        self._rows_beside_decode = min(rows_beside_decode, max_rows)
        self._media_factor = 1.0
        self.target_ms = default_target_ms(costs.curve, max_rows) if costs and target_ms is None else target_ms

    def allowed_ms(self, so_far: StepSoFar, patience: float = 1.0) -> float:
        """Milliseconds that a step is planned to take at most, for `patience` times the target; without bound where
        nobody waits for it, or costs are not known."""
        if self._costs is None or self.target_ms is None or not so_far.is_waited_for:
            return math.inf
        plain = self._costs.predict(so_far.rows, so_far.cells)
        return max(patience * AIM * self.target_ms / so_far.turns, plain * (1 + _PREFILL_SHARE))

    def left_ms(self, so_far: StepSoFar) -> float:
        """Milliseconds that are left of `allowed_ms`."""
        allowed = self.allowed_ms(so_far)
        if self._costs is None or math.isinf(allowed):
            return math.inf
        return max(0.0, allowed - self._costs.predict(so_far.rows, so_far.cells) - so_far.other_ms)

    def prompt_rows(self, so_far: StepSoFar, demands: Sequence[PrefillDemand]) -> int:
        """Rows for these prompts.

        Who waits does so longer than the target for a more urgent prompt, and a little longer for the end of one
        that is as urgent as the most urgent of them, where others are less so.
        """
        rows = self.prefill_rows(so_far)
        if so_far.priority is None:
            return rows
        urgent = sum(demand.weighs for demand in demands if demand.priority > so_far.priority)
        if urgent:
            return max(rows, min(_beside_others(urgent), self.prefill_rows(so_far, patience=_PATIENCE)))
        lowest = min(demand.priority for demand in demands) if demands else so_far.priority
        if so_far.priority == lowest == so_far.lowest_priority:
            return rows
        equals = (demand.weighs for demand in demands if demand.priority == so_far.priority and demand.is_end)
        shortest = _beside_others(min(equals, default=0))
        return shortest if rows < shortest <= self.prefill_rows(so_far, patience=_STRETCH) else rows

    def prefill_rows(self, so_far: StepSoFar, *, patience: float = 1.0) -> int:
        """Rows that prompts may have, as far as cells allow; one at least where there is room, so that they end.

        `patience`: so many times the target.
        """
        room = max(0, self._max_rows - so_far.rows)
        if not so_far.is_waited_for or not room:
            return room
        if self._costs is None:
            return min(room, self._rows_beside_decode)
        counts = np.arange(so_far.rows + 1, so_far.rows + room + 1)
        predicted = self._costs.predict_all(counts, so_far.cells, logits=so_far.rows)
        within = predicted <= self.allowed_ms(so_far, patience) - so_far.other_ms
        # The curve has teeth: a step of more rows may take less time.
        last = int(np.flatnonzero(within)[-1]) if within.any() else 0
        return last + 1

    def draft_rows(self, so_far: StepSoFar, kept: int) -> int:
        """Draft rows where prompts wait for theirs: all but `kept`, and at most half of what the target leaves."""
        room = self._max_rows - so_far.rows - kept
        return room if self._costs is None else min(room, self.prefill_rows(so_far) // 2)

    def media_rows(self, tokens: int) -> int:
        """How many rows of text take as long as a media span of so many logical tokens, once it is encoded; no fewer
        than those tokens, which are rows themselves."""
        return math.ceil(tokens * self._media_factor)

    def learn(self, plan: StepPlan, drafted: int, cells: int, times: StepTimes) -> None:
        """What a successful step with so many drafted tokens took over `cells` used cells."""
        if self._costs is None or times.target <= 0:
            return
        logits = len(plan.decode) + drafted
        rows, tokens = logits + prompt_rows(plan), media_rows(plan)
        if not tokens:
            self._costs.observe(rows, cells, times.target * 1e3, logits=logits)
            return
        others = self._costs.predict(rows, cells, logits=logits)
        as_text = self._costs.predict(rows + tokens, cells, logits=logits) - others
        seen = (times.target * 1e3 - others) / max(as_text, _TINY_MS)
        self._media_factor += _BLEND * (min(max(seen, 1.0), _WILD) - self._media_factor)

    def __repr__(self) -> str:
        if self._costs is None or self.target_ms is None:
            return f"StepBudget({self._rows_beside_decode} rows beside decodes)"
        return f"StepBudget({self.target_ms:.0f} ms a token)"


def _beside_others(rows: int) -> int:
    """Rows of a step that has so many for one priority, and their share for the others."""
    return rows + rows // (OTHERS_SHARE - 1) + 1
