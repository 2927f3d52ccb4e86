"""The segment files of one model. Each is there whole or not at all, after a crash too: written aside, then renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from typing import Final

from forerun.cache.directory import CREATE_FLAGS, DESCRIPTION, READ_FLAGS, CacheDirectory
from forerun.cache.file_format import BadSegmentError, SegmentHead, is_key, read_head, read_segment
from forerun.cache.host import host_bytes
from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import StoredSegment

_SUFFIX: Final = ".kv"
_TEMPORARY: Final = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{16}\.tmp")
_SHARD: Final = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class FileSize:
    """A segment's file, not opened."""

    key: str
    nbytes: int
    last_used: float
    """Seconds since the epoch."""


class SegmentFiles:
    """Files by key below `directory`, of one model. Any thread; calls wait for the disk.

    Several processes may use the same directory at once: a file that another one removed is missing, and of two that
    write the same key one is kept.
    """

    def __init__(self, directory: CacheDirectory, model_key: str) -> None:
        if not is_key(model_key):
            raise ValueError(f"a model key is 32 hexadecimal digits, got {model_key!r}")
        self.directory = directory
        self.model_key = model_key

    def write(self, head: SegmentHead, state: PromptCheckpointState) -> int:
        """Write a segment and see it safe on disk; the file's bytes. Raises OSError, and leaves nothing behind."""
        key = head.header.key
        payload = memoryview(state.state).cast("B")
        with self._shard(key, creates=True) as shard:
            temporary = f"{key}.{secrets.token_hex(8)}.tmp"
            with _locked(shard, temporary) as handle:
                try:
                    for part in (head.encoded, payload, head.payload_digest(payload)):
                        _write_all(handle, part)
                    os.fsync(handle)
                    os.rename(temporary, _name(key), src_dir_fd=shard, dst_dir_fd=shard)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=shard)
                    raise
            os.fsync(shard)
        return head.file_bytes

    def read(self, key: str) -> tuple[SegmentHead, PromptCheckpointState]:
        """A segment, every byte checked. Raises BadSegmentError where that fails; OSError, FileNotFoundError too."""
        with self._shard(key) as shard, _opened(shard, _name(key)) as (file, status):
            head, state = read_segment(file, status.st_size)
            self._check(head, key)
            return head, state

    def remove(self, key: str) -> None:
        """Delete a segment's file, if there is one. Raises OSError."""
        with suppress(FileNotFoundError), self._shard(key) as shard:
            os.unlink(_name(key), dir_fd=shard)

    def touch(self, key: str, last_used: float) -> bool:
        """Note when a segment was last used (seconds since the epoch); whether its file is there. Raises OSError."""
        try:
            with self._shard(key) as shard:
                os.utime(_name(key), (last_used, last_used), dir_fd=shard, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def sizes(self) -> list[FileSize]:
        """What there is by its names alone: faster than `scan`, and deletes nothing."""
        found: list[FileSize] = []
        for entry in self._shards():
            with suppress(OSError), self.directory.opened(self.model_key, entry) as shard:
                for file in _entries(shard):
                    key = file.name.removesuffix(_SUFFIX)
                    if file.name == _name(key) and is_key(key) and file.is_file(follow_symlinks=False):
                        status = file.stat(follow_symlinks=False)
                        found.append(FileSize(key, status.st_size, status.st_mtime))
        return found

    def scan(self, *, removes: bool = True) -> list[StoredSegment]:
        """Every segment there is, by its head, in no order. Payloads are read, and checked, by `read`.

        What does not belong here is deleted where `removes`: unfinished files nobody is writing any more, files that
        are cut, malformed, of another version or model or under another's name, files and links that are none of ours.
        Raises OSError where the model's directory cannot be read; a file that cannot be is passed over.
        """
        found: list[StoredSegment] = []
        for name in self._shards(removes=removes):
            with suppress(OSError), self.directory.opened(self.model_key, name) as shard:
                found += self._scan_shard(shard, name, removes=removes)
        return found

    def _shards(self, *, removes: bool = False) -> list[str]:
        """The directories of files; what else is not a directory is deleted where `removes`."""
        try:
            with self.directory.opened(self.model_key) as model:
                entries = _entries(model)
                for entry in entries:
                    if removes and not entry.is_dir(follow_symlinks=False) and entry.name != DESCRIPTION:
                        _unlink(model, entry.name)
                return [entry.name for entry in entries if _SHARD.fullmatch(entry.name)]
        except FileNotFoundError:
            return []

    def _scan_shard(self, shard: int, prefix: str, *, removes: bool) -> Iterator[StoredSegment]:
        for entry in _entries(shard):
            if entry.is_dir(follow_symlinks=False):
                continue
            try:
                yield self._stored(shard, entry.name, prefix)
            except BadSegmentError:
                if removes and not (_TEMPORARY.fullmatch(entry.name) and _is_being_written(shard, entry.name)):
                    _unlink(shard, entry.name)
            except OSError:  # removed by another engine meanwhile, for instance
                continue

    def _stored(self, shard: int, name: str, prefix: str) -> StoredSegment:
        key = name.removesuffix(_SUFFIX)
        if name != _name(key) or not is_key(key) or not key.startswith(prefix):
            raise BadSegmentError("no segment's name")
        with _opened(shard, name) as (file, status):
            head = read_head(file, status.st_size)
        self._check(head, key)
        return StoredSegment(head.header, status.st_size, host_bytes(head.payload_bytes), status.st_mtime)

    def _check(self, head: SegmentHead, key: str) -> None:
        if head.header.key != key or head.model_key != self.model_key:
            raise BadSegmentError("another segment's file")

    @contextmanager
    def _shard(self, key: str, *, creates: bool = False) -> Iterator[int]:
        if not is_key(key):
            raise ValueError(f"a segment's key is 32 hexadecimal digits, got {key!r}")
        with self.directory.opened(self.model_key, key[:2], creates=creates) as shard:
            yield shard

    def __repr__(self) -> str:
        return f"SegmentFiles({self.directory.path}, model {self.model_key[:8]})"


def _name(key: str) -> str:
    return key + _SUFFIX


def _entries(handle: int) -> list[os.DirEntry[str]]:
    with os.scandir(handle) as entries:
        return list(entries)


@contextmanager
def _opened(shard: int, name: str) -> Iterator[tuple[FileIO, os.stat_result]]:
    """A regular file to read, unbuffered. Raises BadSegmentError for a link or anything else; OSError."""
    try:
        handle = os.open(name, READ_FLAGS, dir_fd=shard)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise BadSegmentError("no regular file") from error
        raise
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadSegmentError("no regular file")
        yield file, status


@contextmanager
def _locked(shard: int, name: str) -> Iterator[int]:
    """A new file that only we write: a scan does not take it for one that a crash left behind. Raises OSError."""
    while True:
        handle = os.open(name, CREATE_FLAGS, 0o600, dir_fd=shard)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:  # else a scan came between: once more
                yield handle
                return
        finally:
            os.close(handle)


def _is_being_written(shard: int, name: str) -> bool:
    """Whether somebody is writing a file; one that is gone is nobody's."""
    with suppress(OSError):
        handle = os.open(name, READ_FLAGS, dir_fd=shard)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _unlink(shard, name)  # while it is locked: its writer looks whether it is still there
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
    return False


def _write_all(handle: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _unlink(handle: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=handle)
