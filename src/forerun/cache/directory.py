"""The directory of a cache: whose it must be, and how what lies below it is opened.

    <cache_dir>/                        made with mode 0700 where it is not there
        <model key>/                    32 hexadecimal digits, 0700
            model.json                  what the key stands for, 0600
            3f/                         the first two digits of the keys of its files, 0700
                3f8a...e1.kv            a segment (file_format.py), 0600
                3f8a...e1.<random>.tmp  one being written, locked by who writes it

Everything below is opened from the directory above it by a name that is a hash of ours, and no link is followed. Only
POSIX systems have what this takes.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forerun.cache.file_format import is_key
from forerun.errors import InvalidConfigError

DESCRIPTION: Final = "model.json"
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not make us wait
CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DESCRIPTION: Final = 64 * 1024
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class CacheDirectory:
    """A directory that is ours alone (`~` is expanded). Any thread; calls wait for the disk.

    Raises InvalidConfigError where it cannot be made or read, or somebody else could put files there: what is read
    from it goes into native code.
    """

    def __init__(self, path: Path, *, creates: bool = True) -> None:
        self.path = path = Path(os.path.expanduser(path))  # leaves "~nobody" as it is, where Path raises
        try:
            if creates:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_link(path)
            self._check_owner(path.stat())
        except OSError as error:
            raise _refusal(f"{path}: cannot be used as a cache: {error.strerror or error}") from error

    def _check_owner(self, status: os.stat_result) -> None:
        if not stat.S_ISDIR(status.st_mode):
            raise _refusal(f"{self.path}: is no directory")
        if status.st_uid != os.geteuid():
            raise _refusal(
                f"{self.path}: belongs to user {status.st_uid}, and you are {os.geteuid()}: "
                "choose a directory of your own"
            )
        if status.st_mode & _OTHERS_WRITE:
            raise _refusal(
                f"{self.path}: others can write to it (mode {stat.S_IMODE(status.st_mode):o}): "
                f"run `chmod go-w {self.path}`, or choose another directory"
            )

    @contextmanager
    def opened(self, *names: str, creates: bool = False) -> Iterator[int]:
        """A descriptor of the directory itself, or of one below it by the names that lead there. Raises OSError."""
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                below = _open_below(handle, name, creates=creates)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def model_keys(self) -> list[str]:
        """The models that have files here."""
        with self.opened() as handle, os.scandir(handle) as entries:
            return sorted(e.name for e in entries if is_key(e.name) and e.is_dir(follow_symlinks=False))

    def describe(self, model_key: str, description: Mapping[str, str]) -> None:
        """Note what a model key stands for, for people. Raises OSError."""
        text = json.dumps(dict(description), indent=1)
        with self.opened(model_key, creates=True) as handle:
            partial = f"{DESCRIPTION}.{secrets.token_hex(8)}.tmp"
            with os.fdopen(os.open(partial, CREATE_FLAGS, 0o600, dir_fd=handle), "w") as file:
                file.write(text)
            os.replace(partial, DESCRIPTION, src_dir_fd=handle, dst_dir_fd=handle)

    def description(self, model_key: str) -> dict[str, str]:
        """What was noted; empty where nothing was, or it makes no sense."""
        with suppress(OSError, ValueError, RecursionError), self.opened(model_key) as handle:
            with os.fdopen(os.open(DESCRIPTION, READ_FLAGS, dir_fd=handle), "rb") as file:
                content = json.loads(file.read(_MAX_DESCRIPTION))
            if isinstance(content, dict):
                return {name: value for name, value in content.items() if isinstance(value, str)}
        return {}


def _refusal(message: str) -> InvalidConfigError:
    return InvalidConfigError("cache_dir", message)


def _check_link(path: Path) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.geteuid(), 0):
        raise _refusal(f"{path}: a link that belongs to user {status.st_uid}: give the directory itself")


def _open_below(handle: int, name: str, *, creates: bool) -> int:
    try:
        return os.open(name, DIRECTORY_FLAGS, dir_fd=handle)
    except FileNotFoundError:
        if not creates:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=handle)
        os.fsync(handle)
    return os.open(name, DIRECTORY_FLAGS, dir_fd=handle)
