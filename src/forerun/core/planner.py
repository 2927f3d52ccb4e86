"""BatchPlanner: which rows a step holds. Decode first, then prefill in rotating fair quanta until the step is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillDemand:
    """What a sequence could evaluate next: `rows` of text, or (`whole`) a media span, taken as one or not at all."""

    key: int
    """Identifies the sequence over the steps."""
    rows: int
    whole: bool = False


class BatchPlanner:
    """Fills one step of at most `max_rows` rows. Remembers only whose turn it is.

    Beside live decodes a step takes at most `rows_beside_decode` prefill rows, so that one long prompt does not hold up
    everybody's next token; alone, prefill takes the whole batch. After `quantum` rows it is another prompt's turn.
    """

    def __init__(self, max_rows: int, *, rows_beside_decode: int, quantum: int) -> None:
        if min(max_rows, rows_beside_decode, quantum) < 1:
            raise ValueError(
                f"row limits are positive, got max_rows={max_rows}, rows_beside_decode={rows_beside_decode}, "
                f"quantum={quantum}"
            )
        self.max_rows = max_rows
        self.rows_beside_decode = min(rows_beside_decode, max_rows)
        self.quantum = quantum
        self._turn = 0

    def prefill_budget(self, decode_rows: int, *, others_decode: bool = False) -> int:
        """Prefill rows that a step with `decode_rows` decode and draft rows has room for, as far as cells allow.

        `others_decode`: there are decodes that wait for the step to end.
        """
        budget = max(0, self.max_rows - decode_rows)
        return min(budget, self.rows_beside_decode) if decode_rows or others_decode else budget

    def share(self, demands: Sequence[PrefillDemand], budget: int) -> dict[int, int]:
        """Rows granted to each key (keys without rows left out). The turn goes on from where the last step ended.

        A media span larger than the budget goes when its turn comes first; callers offer it only where cells suffice.
        Whoever got nothing begins the next step, so that text which always fits cannot keep such a span waiting.
        """
        ordered = self._in_turn(demands)
        granted: dict[int, int] = {}
        waiting = list(ordered)
        while waiting and budget > 0:
            unserved: list[PrefillDemand] = []
            for demand in waiting:
                left = demand.rows - granted.get(demand.key, 0)
                rows = left if demand.whole else min(left, self.quantum, budget)
                if rows > budget and granted:
                    continue
                if rows > 0:
                    granted[demand.key] = granted.get(demand.key, 0) + rows
                    budget -= rows
                    self._turn = demand.key + 1
                if rows < left and budget > 0:
                    unserved.append(demand)
            waiting = unserved
        passed_over = next((demand.key for demand in ordered if demand.key not in granted), None)
        if passed_over is not None:
            self._turn = passed_over
        return granted

    def _in_turn(self, demands: Sequence[PrefillDemand]) -> list[PrefillDemand]:
        ordered = sorted(demands, key=lambda demand: demand.key)
        first = next((i for i, demand in enumerate(ordered) if demand.key >= self._turn), 0)
        return ordered[first:] + ordered[:first]
