"""How many tokens each sequence drafts in a step: as many as are expected to come cheaper than plain decoding.

Drafted tokens are added in some order over the whole batch. After each the step's expected speed is known:

    speed(m) = (sequences + sum of chances) / (target(sequences + m rows) + draft(m))    tokens a millisecond

No sequence is slowed down for others: a step may be longer than a plain one by what the sequence's own expected tokens
are worth and what it is allowed to lose, no more. The cost curve has steps in it, so speed is not concave: every m is
looked at, and the best one taken if it beats drafting nothing by a margin. Zero is a legal answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

MARGIN = 1.03
"""Expected speed must beat plain decoding by this factor: estimates are never exact, and slower is not allowed."""


class Costs(Protocol):
    """Anything that predicts milliseconds of a decode."""

    def predict(self, rows: int, cells: int = 0) -> float: ...

    def predict_all(self, rows: _Indexes, cells: int = 0) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class DraftOption:
    """What one sequence could draft: `chances[i]` is the probability that its first i + 1 tokens are all accepted."""

    chances: Sequence[float]
    uses_model: bool = False
    """Its tokens cost rows of the draft model, one after another."""
    allowance_ms: float = math.inf
    """The step may be so much longer than what the tokens it is expected to give this sequence are worth."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What the step holds beside drafts. `other_rows` are prefill rows."""

    sequences: int
    other_rows: int
    cells: int
    draft_cells: int = 0
    allowance_ms: float = math.inf
    """The step may be so much longer for the sequences that cannot draft."""


class DraftAllocator(Protocol):
    """Shares a step's spare rows among the sequences that could draft."""

    def allocate(self, options: Sequence[DraftOption], spare_rows: int, load: StepLoad) -> list[int]:
        """How many tokens each option drafts: at most len(chances), together at most `spare_rows`."""
        ...

    def saving(self, options: Sequence[DraftOption], lengths: Sequence[int], load: StepLoad) -> float:
        """Milliseconds that drafting so is expected to save for each token that comes out."""
        ...

    def least_chance(self, sequences: int) -> float:
        """No option whose first token is less likely gets rows beside `sequences` sequences: it need not be offered."""
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

    def saving(self, options: Sequence[DraftOption], lengths: Sequence[int], load: StepLoad) -> float:
        del options, load
        return math.inf if any(lengths) else 0.0

    def least_chance(self, sequences: int) -> float:
        del sequences
        return 0.0


class GainAllocator:
    """Allocates by expected gain from measured costs of target and draft.

    `replays`: a rejection costs a second decode, of the rows that were confirmed (memories that cannot be cut).
    """

    def __init__(
        self, target: Costs, draft: Costs | None = None, *, margin: float = MARGIN, replays: bool = False
    ) -> None:
        self._target = target
        self._draft = draft
        self._margin = margin
        self._replays = replays
        self._least: dict[int, float] = {}
        self._asked = 0

    def least_chance(self, sequences: int) -> float:
        """The break-even of a first token if all behind it were certain; worked out again now and then."""
        self._asked += 1
        if self._asked % _REFRESH == 0:
            self._least.clear()
        least = self._least.get(sequences)
        if least is None:
            plain = self._target.predict(sequences)
            needed = [
                sequences * (self._margin * self._target.predict(sequences + m) / plain - 1) / m for m in _LENGTHS
            ]
            least = self._least[sequences] = min(needed)
        return least

    def allocate(self, options: Sequence[DraftOption], spare_rows: int, load: StepLoad) -> list[int]:
        """How many tokens each option drafts.

        Two orders are tried: by chance, which finds the few tokens that pay best, and level by level, which finds what
        pays when all share the draft model's decodes.
        """
        tokens = self._tokens(options)
        none = np.zeros(len(options), np.intp)
        if not tokens.chance.size or spare_rows < 1:
            return none.tolist()
        best, best_speed = none, load.sequences / self._target.predict(load.sequences, load.cells) * self._margin
        for order in (np.lexsort((tokens.level, -tokens.chance)), np.lexsort((-tokens.chance, tokens.level))):
            taken, speed = self._best_beginning(options, tokens.ordered(order[:spare_rows]), load)
            if speed > best_speed:
                best, best_speed = taken, speed
        return best.tolist()

    def _tokens(self, options: Sequence[DraftOption]) -> _Tokens:
        """Every token that could be drafted, but for hopeless ones."""
        usable = [() if option.uses_model and self._draft is None else option.chances for option in options]
        chance = np.array([chance for chances in usable for chance in chances])
        option = np.repeat(np.arange(len(options)), [len(chances) for chances in usable])
        level = np.concatenate([np.arange(len(chances)) for chances in usable]) if usable else np.empty(0, np.intp)
        return _Tokens(chance, option, level).ordered(np.flatnonzero(chance >= _HOPELESS))

    def _best_beginning(
        self, options: Sequence[DraftOption], tokens: _Tokens, load: StepLoad
    ) -> tuple[_Indexes, float]:
        """The beginning of an order with the highest expected speed that slows nobody down: lengths, and the speed."""
        expected = np.cumsum(tokens.chance)
        extra = self._extra_ms(options, tokens, load)
        is_own = tokens.option[:, None] == np.arange(len(options))
        plain_ms = self._target.predict(load.sequences, load.cells)
        own_ms = np.cumsum(is_own * tokens.chance[:, None], axis=0) * plain_ms
        # Who owes nothing may always draft what is worth its own time.
        allowed = own_ms + np.array([max(option.allowance_ms, 0.0) for option in options])
        is_fair = (extra <= allowed.min(axis=1)) & (extra <= max(load.allowance_ms, 0.0))
        speed = np.where(is_fair, (load.sequences + expected) / (plain_ms + extra), 0.0)
        best = int(speed.argmax())
        return is_own[: best + 1].sum(axis=0), float(speed[best])

    def _extra_ms(self, options: Sequence[DraftOption], tokens: _Tokens, load: StepLoad) -> NDArray[np.float64]:
        """Milliseconds that the step is longer than without drafts, after each token taken."""
        taken = np.arange(1, tokens.chance.size + 1)
        extra = self._target_ms(taken, load) + self._draft_ms(options, tokens, load)
        return extra + self._replay_ms(tokens, len(options), load) if self._replays else extra

    def _replay_ms(self, tokens: _Tokens, options: int, load: StepLoad) -> NDArray[np.float64]:
        """What evaluating confirmed rows again is expected to take: one decode for all blocks with a rejection.

        A block of m tokens with chances c replays 1 + accepted rows where not all are accepted:
        (1 - c_m) + sum(c) - m c_m rows on average.
        """
        is_own = tokens.option[:, None] == np.arange(options)
        count = np.cumsum(is_own, axis=0)
        whole = np.minimum.accumulate(np.where(is_own, tokens.chance[:, None], 1.0), axis=0)
        rows = (1 - whole + np.cumsum(is_own * tokens.chance[:, None], axis=0) - count * whole).sum(axis=1)
        any_rejected = 1 - whole.prod(axis=1)
        each = np.ceil(rows / np.maximum(any_rejected, _HOPELESS)).astype(np.intp)
        each_ms = self._target.predict_all(np.maximum(each, 1), load.cells)
        expected: NDArray[np.float64] = any_rejected * each_ms
        return expected

    def _target_ms(self, taken: _Indexes, load: StepLoad) -> NDArray[np.float64]:
        rows = _rows(load)
        return self._target.predict_all(rows + taken, load.cells) - self._target.predict(rows, load.cells)

    def _draft_ms(self, options: Sequence[DraftOption], tokens: _Tokens, load: StepLoad) -> NDArray[np.float64]:
        """One decode of the draft model for each level, of as many rows as sequences draft that deep."""
        uses_model = np.array([option.uses_model for option in options])[tokens.option]
        if self._draft is None or not uses_model.any():
            return np.zeros(tokens.chance.size)
        same_level = (tokens.level[:, None] == np.arange(int(tokens.level.max()) + 1)) & uses_model[:, None]
        rank = np.cumsum(same_level, axis=0)[np.arange(tokens.level.size), tokens.level]
        by_rows = np.array([self._draft.predict(rows, load.draft_cells) for rows in range(len(options) + 1)])
        return np.cumsum(np.where(uses_model, by_rows[rank] - by_rows[np.maximum(rank - 1, 0)], 0.0))

    def saving(self, options: Sequence[DraftOption], lengths: Sequence[int], load: StepLoad) -> float:
        """Milliseconds that drafting so is expected to save for each token that comes out."""
        drafted = [DraftOption(o.chances[:n], o.uses_model) for o, n in zip(options, lengths, strict=True)]
        tokens = self._tokens(drafted)
        if not tokens.chance.size:
            return 0.0
        plain_ms = self._target.predict(load.sequences, load.cells)
        extra = self._extra_ms(drafted, tokens, load)[-1]
        expected = float(tokens.chance.sum())
        return plain_ms / load.sequences - (plain_ms + float(extra)) / (load.sequences + expected)


_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Draft lengths that the break-even is worked out for."""
_REFRESH = 64
"""After so many questions the break-even is worked out again: costs move slowly."""
_HOPELESS = 0.02
"""Tokens less likely than this are not looked at."""
_Indexes: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens that could be drafted, as columns: chance, whose, and how deep (0 is the first)."""

    chance: NDArray[np.float64]
    option: _Indexes
    level: _Indexes

    def ordered(self, order: _Indexes) -> _Tokens:
        return _Tokens(self.chance[order], self.option[order], self.level[order])


def _rows(load: StepLoad) -> int:
    return load.sequences + load.other_rows
