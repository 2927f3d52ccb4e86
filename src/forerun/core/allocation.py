"""How many tokens each sequence drafts in a step: as many as are expected to come cheaper than plain decoding.

Drafted tokens are added in order of their chance, over the whole batch. After each the step's expected speed is known:

    speed(m) = (sequences + sum of chances) / (target(sequences + m rows) + draft(m))    tokens a millisecond

The cost curve has steps in it, so speed is not concave: every m is looked at, and the best one taken if it beats
drafting nothing by a margin. Zero is a legal answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MARGIN = 1.03
"""Expected speed must beat plain decoding by this factor: estimates are never exact, and slower is not allowed."""


class Costs(Protocol):
    """Anything that predicts milliseconds of a decode."""

    def predict(self, rows: int, cells: int = 0) -> float: ...


@dataclass(frozen=True, slots=True)
class DraftOption:
    """What one sequence could draft: `chances[i]` is the probability that its first i + 1 tokens are all accepted."""

    chances: Sequence[float]
    uses_model: bool = False
    """Its tokens cost rows of the draft model, one after another."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What the step holds beside drafts. `other_rows` are prefill rows."""

    sequences: int
    other_rows: int
    cells: int
    draft_cells: int = 0


class DraftAllocator(Protocol):
    """Shares a step's spare rows among the sequences that could draft."""

    def allocate(self, options: Sequence[DraftOption], spare_rows: int, load: StepLoad) -> list[int]:
        """How many tokens each option drafts: at most len(chances), together at most `spare_rows`."""
        ...


class FixedDraftAllocator:
    """Everyone drafts up to one maximum, whatever it costs; when rows run short, all get the same share."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum

    def allocate(self, options: Sequence[DraftOption], spare_rows: int, load: StepLoad) -> list[int]:
        del load
        drafting = sum(1 for option in options if option.chances)
        share = min(self.maximum, max(spare_rows, 0) // drafting) if drafting else 0
        return [min(len(option.chances), share) for option in options]


class GainAllocator:
    """Allocates by expected gain from measured costs of target and draft."""

    def __init__(self, target: Costs, draft: Costs | None = None, *, margin: float = MARGIN) -> None:
        self._target = target
        self._draft = draft
        self._margin = margin

    def allocate(self, options: Sequence[DraftOption], spare_rows: int, load: StepLoad) -> list[int]:
        """How many tokens each option drafts."""
        order = self._by_chance(options)[: max(spare_rows, 0)]
        rows = load.sequences + load.other_rows
        plain_ms = self._target.predict(load.sequences, load.cells)
        before_ms = self._target.predict(rows, load.cells)
        lengths = [0] * len(options)
        best, best_speed = list(lengths), load.sequences / plain_ms * self._margin
        expected, depth = 0.0, _DraftDepth(self._draft, load.draft_cells)
        for taken, (chance, option) in enumerate(order, start=1):
            lengths[option] += 1
            expected += chance
            if options[option].uses_model:
                depth.add(lengths[option])
            extra_ms = self._target.predict(rows + taken, load.cells) - before_ms + depth.ms
            speed = (load.sequences + expected) / (plain_ms + extra_ms)
            if speed > best_speed:
                best, best_speed = list(lengths), speed
        return best

    def _by_chance(self, options: Sequence[DraftOption]) -> list[tuple[float, int]]:
        """All tokens that could be drafted, the likeliest first; tokens of one option stay in order."""
        ranked = [
            (chance, position, index)
            for index, option in enumerate(options)
            if not option.uses_model or self._draft is not None
            for position, chance in enumerate(option.chances)
        ]
        ranked.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
        return [(chance, index) for chance, _, index in ranked]


class _DraftDepth:
    """The draft model's cost: one decode for each depth, of as many rows as sequences draft that deep."""

    __slots__ = ("_cells", "_costs", "_rows", "ms")

    def __init__(self, costs: Costs | None, cells: int) -> None:
        self._costs = costs
        self._cells = cells
        self._rows: list[int] = []
        self.ms = 0.0

    def add(self, depth: int) -> None:
        """One more sequence drafts a token at `depth` (1 is the first)."""
        assert self._costs is not None
        if depth > len(self._rows):
            self._rows.append(0)
        before = self._rows[depth - 1]
        self._rows[depth - 1] += 1
        self.ms += self._costs.predict(before + 1, self._cells) - self._costs.predict(before, self._cells)
