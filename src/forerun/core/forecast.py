"""What drafting can bring, from measured costs alone: the best case, and how often drafts must be right to pay.

The same arithmetic as in each step (`GainAllocator`), for one sequence and an acceptance that is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.allocation import Costs, DraftOption, GainAllocator, StepLoad

_PRECISION = 0.001
"""Of the break-even acceptance."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Drafting at one acceptance, with the best length."""

    acceptance: float
    """Probability that a drafted token is right, once all before it were."""
    length: int
    """Drafted tokens a step."""
    speedup: float
    """Tokens a second, as a multiple of plain decoding; below 1 where every length is slower."""


@dataclass(frozen=True, slots=True)
class DraftingProspect:
    """How fast one sequence can get by drafting at most `most_tokens` tokens a step, while `cells` cells are used.

    `draft` is None for drafts that cost nothing to make (n-grams).
    """

    target: Costs
    draft: Costs | None
    most_tokens: int
    cells: int = 0

    def at(self, acceptance: float) -> Forecast:
        """With the length that is best at `acceptance`, in [0, 1]; at least one token is drafted."""
        allocator = GainAllocator(self.target, self.draft, margin=0.0)  # the best length, also where none is better
        load = StepLoad(sequences=1, other_rows=0, cells=self.cells, draft_cells=self.cells)
        chances = [acceptance**position for position in range(1, self.most_tokens + 1)]
        option = DraftOption(chances, uses_model=self.draft is not None)
        (length,) = allocator.allocate([option], self.most_tokens, load)
        plain_ms = self.target.predict(1, self.cells)
        saved_ms = allocator.saving([option], [length], load)
        return Forecast(acceptance, length, plain_ms / (plain_ms - saved_ms))

    def break_even(self) -> float | None:
        """The acceptance from which on drafting is no slower than plain decoding; None where even 1 is too little."""
        low, high = 0.0, 1.0
        if self.at(high).speedup < 1:
            return None
        while high - low > _PRECISION:  # more acceptance is never slower
            forecast = self.at((low + high) / 2)
            if forecast.length and forecast.speedup >= 1:
                high = forecast.acceptance
            else:
                low = forecast.acceptance
        return high
