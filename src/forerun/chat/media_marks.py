"""Media in what chat templates write: shown to a template as characters that nobody wrote, and taken out again.

A template sees one private-use character an item, in the text where the item stands. Those characters occur in nothing
that callers or the template wrote, so that no text can pass for media.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from forerun.core.prompt_text import PromptText
from forerun.errors import InvalidRequestError


def without_marks(text: PromptText, marks: Sequence[str]) -> PromptText:
    """The text without the characters that stand for media, which it remembers instead.

    Raises InvalidRequestError where the template left one out.
    """
    if not marks:
        return text
    numbers = {mark: number for number, mark in enumerate(marks)}
    offsets: list[int] = []
    media: list[tuple[int, int]] = []
    for passed, match in enumerate(re.finditer(f"[{''.join(marks)}]", text.text)):
        offsets.append(match.start())
        media.append((match.start() - passed, numbers[match[0]]))
    if missing := numbers.keys() - {text.text[offset] for offset in offsets}:
        number = min(numbers[mark] for mark in missing) + 1
        said = f"the model's chat template leaves out item {number} of the {len(marks)} images and recordings in them"
        raise InvalidRequestError("messages", said)
    return PromptText(re.sub(f"[{''.join(marks)}]", "", text.text), _shifted(text.plain, offsets), tuple(media))


def _shifted(plain: Sequence[tuple[int, int]], removed: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ranges, in order, after characters at these offsets, in order and in none of the ranges, were taken out."""
    shifted, before = [], 0
    for start, end in plain:
        while before < len(removed) and removed[before] < start:
            before += 1
        shifted.append((start - before, end - before))
    return tuple(shifted)
