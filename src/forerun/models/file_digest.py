"""What a model file is by its content, read once for each version of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from forerun.errors import ModelLoadError
from forerun.models.probe import identity
from forerun.models.probe_cache import digest
from forerun.models.user_cache import read_json, user_cache_file, write_json

_MAX_ENTRIES: Final = 256
_CHUNK: Final = 2**20
_HEX_DIGITS: Final = 64

Progress = Callable[[str, float], None]
"""Told a file's name and the share of it that is read, 0 to 1."""


def file_digest(path: Path, progress: Progress | None = None, remembered: Path | None = None) -> str:
    """SHA-256 of a file, hexadecimal: about a second for 1 GB, and nothing once it is known.

    It is known for as long as path, inode, size, and times of modification and of change stay the same. `remembered`:
    where digests are kept, in the user's cache folder unless said. Raises ModelLoadError where the file cannot be
    read, or changes meanwhile.
    """
    file = remembered or user_cache_file("digests.json")
    try:
        key = digest(identity(path))
        known = _read(file).get(key)
        if isinstance(known, str) and len(known) == _HEX_DIGITS:
            return known
        found = _computed(path, progress)
        if digest(identity(path)) != key:
            raise ModelLoadError(f"{path}: the file changed while it was read: load it again")
    except OSError as error:
        raise ModelLoadError(f"{path}: the file cannot be read: {error.strerror or error}") from error
    _remember(file, key, found)
    return found


def remember_digest(path: Path, sha256: str, remembered: Path | None = None) -> None:
    """What `file_digest` will say of a file whose every byte was seen just now. Raises OSError."""
    _remember(remembered or user_cache_file("digests.json"), digest(identity(path)), sha256)


def _remember(file: Path | None, key: str, found: str) -> None:
    entries = {name: value for name, value in _read(file).items() if name != key} | {key: found}
    write_json(file, dict(list(entries.items())[-_MAX_ENTRIES:]))


def _computed(path: Path, progress: Progress | None) -> str:
    total = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size, done = os.fstat(file.fileno()).st_size, 0
        while chunk := file.read(_CHUNK):
            total.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(path.name, min(1.0, done / max(size, 1)))
    return total.hexdigest()


def _read(file: Path | None) -> dict[str, Any]:
    entries = read_json(file)
    return entries if isinstance(entries, dict) else {}
