"""Whether the files of a stored model still are what was placed: every byte is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from forerun.models.store import StoredFile, StoredModel

_CHUNK: Final = 2**20

VerifyProgress = Callable[[str, float], None]
"""Told a file's name and the share of it that is read, 0 to 1."""


def fault_of(model: StoredModel, file: StoredFile, progress: VerifyProgress) -> str | None:
    """What is wrong with one file of a model; None where it is as it was placed."""
    path = model.folder / file.name
    try:
        found = path.stat().st_size
        if found != file.size:
            return f"has {found} bytes, it had {file.size}"
        total, done = hashlib.sha256(), 0
        with path.open("rb", buffering=0) as opened:
            while chunk := opened.read(_CHUNK):
                total.update(chunk)
                done += len(chunk)
                progress(file.name, done / max(1, file.size))
    except FileNotFoundError:
        return "is not there any more"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if total.hexdigest() == file.sha256 else "has other bytes than it had"
