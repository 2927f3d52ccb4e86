"""What drafters that copy could reach on an answer that is known, without running a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.costs import CostCurve
from forerun.engine_config import MAX_AUTO_DRAFT_TOKENS


@dataclass(frozen=True, slots=True)
class Recording:
    """A prompt and what the target said, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def cells(self) -> int:
        """Used cells half-way through the answer."""
        return len(self.prompt) + len(self.answer) // 2


def plain_ms(recording: Recording, curve: CostCurve) -> float:
    """Milliseconds of plain decoding, from the first token of the answer to the last."""
    return curve.predict(1, recording.cells) * (len(recording.answer) - 1)


def best_copy_ms(recording: Recording, curve: CostCurve, longest: int = MAX_AUTO_DRAFT_TOKENS) -> float:
    """The same for the best of all drafters that copy what stands in the text before, in hindsight.

    It knows where to copy from, and where the target will say something else, so that no drafted token is refused.
    """
    text, start = (*recording.prompt, *recording.answer), len(recording.prompt)
    costs = [curve.predict(1 + drafted, recording.cells) for drafted in range(longest + 1)]
    left = [0.0] * (len(text) + longest + 2)
    for at in range(len(text) - 1, start, -1):
        left[at] = min(
            costs[drafted] + left[at + drafted + 1] for drafted in range(_longest_copy(text, at, longest) + 1)
        )
    return left[start + 1]


def _longest_copy(text: Sequence[int], at: int, longest: int) -> int:
    """How much of what follows `at` stands somewhere before it in one piece."""
    most = min(longest, len(text) - at)
    return max((_same(text, source, at, most) for source in range(at) if text[source] == text[at]), default=0)


def _same(text: Sequence[int], source: int, at: int, most: int) -> int:
    return next((length for length in range(most) if text[source + length] != text[at + length]), most)
