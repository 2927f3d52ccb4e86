"""Remembers which model files were probed well, in a small JSON file of the user's cache folder.

It only saves time: a missing, unreadable or corrupt file is an empty cache, and one that cannot be written is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAX_ENTRIES: Final = 256
_MAX_BYTES: Final = 64 * 1024  # 256 digests take 17 KB; anything longer is not ours


@dataclass(frozen=True, slots=True)
class ProbeCache:
    """The digests of what was probed, oldest first. `file` is None where there is no place to keep them."""

    file: Path | None

    @classmethod
    def of_user(cls) -> ProbeCache:
        """In $XDG_CACHE_HOME/forerun (where absolute, as the XDG specification demands), or ~/.cache/forerun."""
        configured = os.environ.get("XDG_CACHE_HOME", "")
        try:
            folder = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
        except RuntimeError:  # no home folder
            return cls(None)
        return cls(folder / "forerun" / "probed.json")

    def holds(self, key: str) -> bool:
        """Whether `key` was added by this or an earlier process."""
        return _digest(key) in self._read()

    def add(self, key: str) -> None:
        """Remember `key`. Of two processes adding at once one may be forgotten: it is probed once more."""
        if self.file is None:
            return
        digest = _digest(key)
        entries = [entry for entry in self._read() if entry != digest] + [digest]
        with suppress(OSError):
            _write(self.file, json.dumps(entries[-_MAX_ENTRIES:]))

    def _read(self) -> list[str]:
        if self.file is None:
            return []
        try:
            with self.file.open("rb") as file:
                entries = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return []
        return [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp makes the file with mode 0600, and under a name nobody else has.
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            os.unlink(partial)
        raise
