"""Texts of a wanted length, made from a seed: the same for every server, and new for every round."""

from __future__ import annotations

import random
from typing import Final

_TEXT: Final = (
    "the a this that every some one old new small large long short dark bright cold warm quiet open house "
    "river road field door window table letter garden market bridge boat train school winter summer morning "
    "evening story song stone water light paper bread friend child teacher doctor farmer sailor baker sister "
    "brother found kept lost made saw heard opened closed carried followed left reached under over behind near "
    "beyond before after with without and but because while until slowly often never always once again almost "
    "still away home north south early late "
)
_WORDS: Final = tuple(_TEXT.split())
_SENTENCE: Final = (7, 14)
"""Words, from and to."""


def dice(seed: int, *names: object) -> random.Random:
    """Chances of their own for each part of a workload: asking for more of one does not change another."""
    return random.Random(f"{seed}/{'/'.join(map(str, names))}")


def story(chances: random.Random, tokens: int) -> str:
    """Sentences without sense, of about so many tokens: nearly every word and every full stop is one."""
    sentences: list[str] = []
    left = tokens
    while left > 0:
        count = max(min(chances.randint(*_SENTENCE), left - 1), 1)
        words = [chances.choice(_WORDS) for _ in range(count)]
        sentences.append(f"{' '.join(words).capitalize()}.")
        left -= count + 1
    return " ".join(sentences)


def user(text: str) -> dict[str, str]:
    """A message of the person who asks."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    """A message of the model."""
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    """What stands before the conversation."""
    return {"role": "system", "content": text}
