"""Numbers that take long to measure and come out the same each time, kept beside the generated models."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.tiny_models import MODELS_FOLDER


def measured_once(key: str, measure: Callable[[], float], folder: Path = MODELS_FOLDER) -> float:
    """What `measure` returned when it was first asked under `key`, which says everything that the number rests on."""
    path = folder / f"measured-{hashlib.sha256(key.encode()).hexdigest()[:16]}.txt"
    with suppress(FileNotFoundError):
        return float(path.read_text())
    value = measure()
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(repr(value))
    partial.replace(path)
    return value
