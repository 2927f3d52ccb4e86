"""Remembers which model files were probed well, in a small JSON file of the user's cache folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.models.user_cache import read_json, user_cache_file, write_json

_MAX_ENTRIES: Final = 256


@dataclass(frozen=True, slots=True)
class ProbeCache:
    """The digests of what was probed, oldest first. `file` is None where there is no place to keep them."""

    file: Path | None

    @classmethod
    def of_user(cls) -> ProbeCache:
        return cls(user_cache_file("probed.json"))

    def holds(self, key: str) -> bool:
        """Whether `key` was added by this or an earlier process."""
        return digest(key) in self._read()

    def add(self, key: str) -> None:
        """Remember `key`. Of two processes adding at once one may be forgotten: it is probed once more."""
        entries = [entry for entry in self._read() if entry != digest(key)] + [digest(key)]
        write_json(self.file, entries[-_MAX_ENTRIES:])

    def _read(self) -> list[str]:
        entries = read_json(self.file)
        return [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []


def digest(key: str) -> str:
    """A key as it is kept."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()
