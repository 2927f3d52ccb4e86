"""Files that requests name: under one folder, wherever links lead."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from forerun.errors import InvalidRequestError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOWHERE: Final = "is no file under the server's --media-root"


class MediaFolder:
    """Reads files below `root`. Immutable; any thread."""

    def __init__(self, root: Path) -> None:
        """Raises OSError where there is no such folder."""
        self._root = root.resolve(strict=True)
        if not self._root.is_dir():
            raise NotADirectoryError(f"{root} is no folder")

    def read(self, url: str, field: str, max_bytes: int) -> bytes:
        """The bytes of a file: URL, absolute or relative to the folder. Raises InvalidRequestError naming `field`.

        What is outside and what is not there get the same answer.
        """
        try:
            parts = self._inside(url)
            return self._opened(parts, field, max_bytes)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
            raise InvalidRequestError(field, _NOWHERE) from None

    def _inside(self, url: str) -> tuple[str, ...]:
        """The path below the folder, all links followed. Raises ValueError where it leads out."""
        address = urlsplit(url)
        if address.netloc not in ("", "localhost") or address.query or address.fragment:
            raise ValueError(url)
        path = (self._root / unquote(address.path, errors="strict")).resolve(strict=True)
        return path.relative_to(self._root).parts

    def _opened(self, parts: tuple[str, ...], field: str, max_bytes: int) -> bytes:
        """Open step by step without following links: what was replaced by one since is not there."""
        with ExitStack() as held:
            folder = os.open(self._root, _FOLDER)
            held.callback(os.close, folder)
            for part in parts[:-1]:
                folder = os.open(part, _FOLDER, dir_fd=folder)
                held.callback(os.close, folder)
            descriptor = os.open(parts[-1] if parts else ".", _FILE, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(parts)
                if found.st_size > max_bytes:
                    raise InvalidRequestError(field, f"has {found.st_size} bytes, at most {max_bytes} are read")
                return file.read(max_bytes)

    def __repr__(self) -> str:
        return f"MediaFolder({self._root})"
