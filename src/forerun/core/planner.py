"""BatchPlanner: which prompts a step goes on with, until its rows are used up.

    the rows of a step   [ the shortest prompts first: who needs least is answered, and gone | in turn, an eighth ]

In turns alone all of several prompts end late; the shortest first, each ends as early as it can and none much later.
The eighth keeps long ones going, however many short ones come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

OTHERS_SHARE: Final = 8
"""One of so many rows is for prompts of lower priorities, and of each priority's rows for those whose turn it is."""


@dataclass(frozen=True, slots=True)
class PrefillDemand:
    """What a sequence could evaluate next: `rows` of text, or (`whole`) a media span, taken as one or not at all."""

    key: int
    """Identifies the sequence over the steps."""
    rows: int
    """Cells it takes."""
    whole: bool = False
    priority: int = 0
    weight: int = 0
    """Rows of the budget that a media span takes, encoding included; 0: `rows`."""
    left: int = 0
    """Tokens until the prompt ends, these included; 0: `rows`."""

    @property
    def is_end(self) -> bool:
        """Whether the prompt ends with it."""
        return self.left <= self.rows

    @property
    def weighs(self) -> int:
        """Rows of the budget that all of it takes."""
        return self.weight or self.rows


class BatchPlanner:
    """Shares a step's prefill rows among prompts. Remembers only whose turn it is.

    Higher priorities first, but for an eighth of the rows, so that all go on; among equals the shortest, but for an
    eighth too, of which it is another one's turn after `quantum` rows.
    """

    def __init__(self, *, quantum: int) -> None:
        if quantum < 1:
            raise ValueError(f"a turn has at least one row, got quantum={quantum}")
        self.quantum = quantum
        self._turns: dict[int, int] = {}
        """By priority: the key whose turn it is."""
        self._steps = 0

    def share(self, demands: Sequence[PrefillDemand], budget: int) -> dict[int, int]:
        """Rows granted to each key (keys without rows left out). The turn goes on from where the last step ended.

        A media span larger than the budget goes when its turn comes first; callers offer it only where cells suffice.
        Whoever got nothing begins the next step, so that text which always fits cannot keep such a span waiting.
        """
        self._steps += 1
        # Where there are too few rows for a share of them, the others' turn comes first now and then.
        is_others_turn = budget < OTHERS_SHARE and self._steps % OTHERS_SHARE == 0
        levels = sorted({demand.priority for demand in demands}, reverse=not is_others_turn)
        self._turns = {level: self._turns.get(level, 0) for level in levels}
        granted: dict[int, int] = {}
        ordered = [self._in_turn([demand for demand in demands if demand.priority == level]) for level in levels]
        for at, own in enumerate(ordered, 1):
            kept = budget // OTHERS_SHARE if at < len(ordered) else 0
            budget = kept + self._share_among(own, budget - kept, granted)
        for own in ordered:
            if len(ordered) > 1:  # what was kept and not needed
                budget = self._share_among(own, budget, granted)
            passed_over = next((demand.key for demand in own if demand.key not in granted), None)
            if passed_over is not None:
                self._turns[own[0].priority] = passed_over
        return granted

    def _share_among(self, ordered: Sequence[PrefillDemand], budget: int, granted: dict[int, int]) -> int:
        """Grant equals, in the order of their turns, their rows; what is left of the budget."""
        in_turn = budget // OTHERS_SHARE
        if len(ordered) > 1 and in_turn and not self._is_large(ordered[0], in_turn):
            budget = in_turn + self._share_shortest(ordered, budget - in_turn, granted)
        return self._share_in_turn(ordered, budget, granted)

    @staticmethod
    def _is_large(demand: PrefillDemand, budget: int) -> bool:
        """Whether it finds room only in a step that begins with it."""
        return demand.whole and demand.weighs > budget

    @staticmethod
    def _share_shortest(demands: Sequence[PrefillDemand], budget: int, granted: dict[int, int]) -> int:
        """Grant rows to who needs least until the end of the prompt; what is left of the budget."""
        for demand in sorted(demands, key=lambda demand: (demand.left or demand.rows, demand.key)):
            if demand.whole and demand.weighs > budget:
                continue
            rows = demand.rows if demand.whole else min(demand.rows, budget)
            if rows > 0:
                granted[demand.key] = rows
                budget -= demand.weighs if demand.whole else rows
        return budget

    def _share_in_turn(self, ordered: Sequence[PrefillDemand], budget: int, granted: dict[int, int]) -> int:
        """Grant rows in quanta, one after the other; what is left of the budget."""
        waiting = list(ordered)
        while waiting and budget > 0:
            unserved: list[PrefillDemand] = []
            for demand in waiting:
                left = demand.rows - granted.get(demand.key, 0)
                rows = left if demand.whole else min(left, self.quantum, budget)
                if demand.whole and demand.weighs > budget and granted:
                    continue
                if rows > 0:
                    granted[demand.key] = granted.get(demand.key, 0) + rows
                    budget -= demand.weighs if demand.whole else rows
                    self._turns[demand.priority] = demand.key + 1
                if rows < left and budget > 0:
                    unserved.append(demand)
            waiting = unserved
        return budget

    def _in_turn(self, demands: Sequence[PrefillDemand]) -> list[PrefillDemand]:
        """Equals, from the one whose turn it is."""
        ordered = sorted(demands, key=lambda demand: demand.key)
        turn = self._turns[ordered[0].priority]
        first = next((i for i, demand in enumerate(ordered) if demand.key >= turn), 0)
        return ordered[first:] + ordered[:first]
