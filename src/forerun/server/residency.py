"""Which model leaves when another one is to be loaded: decided here, done by registry.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of memory that a model takes, contexts and all."""

    total: int
    mapped: int
    """Those among them that are mapped from its files. The system counts them as free for others, but a model whose
    weights others push out reads them again for every token."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that is loaded."""

    id: str
    footprint: Footprint
    is_busy: bool
    """Whether requests have it."""
    last_used: float


def who_leaves(residents: Sequence[Resident], wanted: Footprint, *, most: int | None, free: int | None) -> str | None:
    """The next one to make room for `wanted`: the least recently used, one that nobody uses before one that is used.

    None where there is room, and where all of them together would not make enough. `most`: models loaded at a time;
    `free`: bytes that can be had, as the system counts them; None for either: no limit is known.
    """
    if not residents:
        return None
    has_place = most is None or len(residents) < most
    if has_place and (free is None or _has_room(residents, wanted, free)):
        return None
    return min(residents, key=lambda one: (one.is_busy, one.last_used)).id


def _has_room(residents: Sequence[Resident], wanted: Footprint, free: int) -> bool:
    """Whether it fits, or would not even without the others."""
    unclaimed = free - sum(one.footprint.mapped for one in residents)
    with_all_gone = unclaimed + sum(one.footprint.total for one in residents)
    return wanted.total <= unclaimed or wanted.total > with_all_gone
