"""Loading a model: its phases, and who is told how far it is."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TypeAlias


class LoadPhase(StrEnum):
    """In their order; those that a model has no use for are left out."""

    FILES = "files"
    """Looking at them: headers, sizes, whether they fit together and in memory; contents where those are wanted."""
    TARGET = "target"
    """Weights."""
    DRAFT = "draft"
    CONTEXTS = "contexts"
    """KV memory and buffers."""
    PROJECTOR = "projector"
    """What encodes pictures."""
    WARM_UP = "warm-up"
    """First decodes, what they cost where that is wanted and not known, and what is stored of earlier prefixes."""


LoadProgress: TypeAlias = Callable[[LoadPhase, str, float], None]
"""Told the phase, what is being done in it, and the share that is done, 0 to 1; several times a second where it takes
long. What it raises ends the loading, once everything is freed again, and is raised there."""
PhaseProgress: TypeAlias = Callable[[str, float], None]
"""The same, within a phase."""


def during(phase: LoadPhase, progress: LoadProgress | None) -> PhaseProgress:
    """What to tell in one phase; None: nobody is told."""
    return _untold if progress is None else partial(progress, phase)


def _untold(_what: str, _share: float) -> None:
    pass
