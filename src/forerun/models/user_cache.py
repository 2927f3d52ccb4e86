"""Small private files in the user's cache folder. They only save time: unreadable is empty, unwritable is none."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_MAX_BYTES: Final = 256 * 1024  # anything longer is not ours


def user_cache_file(name: str) -> Path | None:
    """In $XDG_CACHE_HOME/forerun (where absolute, as the XDG specification demands), or ~/.cache/forerun.

    None where there is no place for it.
    """
    configured = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    except RuntimeError:  # no home folder
        return None
    return folder / "forerun" / name


def read_json(file: Path | None) -> Any:
    """What the file holds; None where it is missing, unreadable, too long or no JSON."""
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            return json.loads(opened.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def write_json(file: Path | None, content: Any) -> None:
    """Replace the file at once, mode 0600; does nothing where it cannot be written."""
    if file is not None:
        with suppress(OSError):
            _replace(file, json.dumps(content))


def _replace(path: Path, text: str) -> None:
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
