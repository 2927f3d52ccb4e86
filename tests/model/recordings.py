"""Models that hear: the tiny ones with a projector that does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.model.pictures import Seeing, seeing
from tests.support.tiny_projector import TinyProjector, build_projector

HEARS = TinyProjector(hears=True)
"""And sees."""
HEARS_ONLY = TinyProjector(kind=None, hears=True)


@contextmanager
def hearing(model: Path, projector: TinyProjector = HEARS, **options: Any) -> Iterator[Seeing]:
    """Loads a model with a projector for both, or for recordings alone."""
    with seeing(model, build_projector(projector), **options) as one:
        yield one
