"""Where tokens came from, as runs: (name, how many), in order.

A name is TARGET for the model's own choices, else that of the drafter whose proposal the target confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

Origins: TypeAlias = tuple[tuple[str, int], ...]

TARGET: Final = "target"
OWN_CHOICE: Final[Origins] = ((TARGET, 1),)


def first(origins: Origins, count: int) -> Origins:
    """The runs of the first `count` tokens."""
    kept: list[tuple[str, int]] = []
    for name, length in origins:
        if count <= 0:
            break
        kept.append((name, min(length, count)))
        count -= length
    return tuple(kept)


def of_block(proposed: Origins, accepted: int, tokens: int) -> Origins:
    """Where a block of `tokens` tokens came from: the first `accepted` from `proposed`, the rest is TARGET's."""
    if not accepted:
        return OWN_CHOICE if tokens == 1 else ((TARGET, tokens),)
    own = tokens - accepted
    return (*first(proposed, min(accepted, tokens)), (TARGET, own)) if own > 0 else first(proposed, tokens)


def joined(parts: Iterable[Origins]) -> Origins:
    """Runs one after another; neighbours of one name become one run."""
    runs: list[tuple[str, int]] = []
    for name, length in (run for part in parts for run in part):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + length)
        else:
            runs.append((name, length))
    return tuple(runs)


def total(origins: Origins) -> int:
    """How many tokens the runs speak of."""
    return sum(length for _, length in origins)
