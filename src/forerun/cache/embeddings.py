"""What media were encoded to: kept in host memory, and in files where there is a cache directory, by identity.

    <cache_dir>/media/<digest of the identity>.emb        [ SHA-256 of identity and embeddings | embeddings ], 0600

Both have hard budgets; what was used longest ago goes first. A file that is torn, tampered with or another one's is as
good as none.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # needs a POSIX system; without files none is
    from forerun.cache.directory import CacheDirectory

logger = logging.getLogger(__name__)

_FOLDER: Final = "media"
_SUFFIX: Final = ".emb"
_PARTIAL: Final = ".tmp"
_LEFT_AFTER: Final = 3600.0
"""Seconds after which nobody writes to a file any more."""
_DIGEST: Final = hashlib.sha256().digest_size


class EmbeddingCache:
    """Implements core.encoding.EmbeddingStore. `budget`: bytes in host memory. Used by one thread."""

    def __init__(self, budget: int, files: EmbeddingFiles | None = None) -> None:
        self.budget = budget
        self.used = 0
        self._files = files
        self._held: OrderedDict[str, bytes] = OrderedDict()

    def get(self, identity: str) -> bytes | None:
        found = self._held.get(identity)
        if found is not None:
            self._held.move_to_end(identity)
            return found
        found = self._files.read(identity) if self._files is not None else None
        if found is not None:
            self._hold(identity, found)
        return found

    def put(self, identity: str, encoded: bytes) -> None:
        self._hold(identity, encoded)
        if self._files is not None:
            self._files.write(identity, encoded)

    def _hold(self, identity: str, encoded: bytes) -> None:
        self.used -= len(self._held.pop(identity, b""))
        if len(encoded) > self.budget:
            return
        while self.used + len(encoded) > self.budget:
            _, gone = self._held.popitem(last=False)
            self.used -= len(gone)
        self._held[identity] = encoded
        self.used += len(encoded)

    def check_integrity(self) -> None:
        """Raise AssertionError where the count is not that of what is here."""
        assert self.used == sum(map(len, self._held.values())) <= self.budget

    def __repr__(self) -> str:
        return f"EmbeddingCache({len(self._held)} spans, {self.used} of {self.budget} bytes)"


@dataclass(frozen=True, slots=True, order=True)
class EncodedFile:
    """A file of encoded media, or one being written. The last used is the largest."""

    last_used: float
    """Seconds since the epoch."""
    nbytes: int
    name: str

    @property
    def is_left(self) -> bool:
        """Whether somebody who wrote to it is gone."""
        return self.name.endswith(_PARTIAL) and self.last_used < time.time() - _LEFT_AFTER


def encoded_files(directory: CacheDirectory) -> list[EncodedFile]:
    """What a cache directory holds of encoded media, the last used last. Raises OSError."""
    with suppress(FileNotFoundError), directory.opened(_FOLDER) as folder:
        return _listed(folder)
    return []


def remove_encoded(directory: CacheDirectory, name: str) -> None:
    """Delete a file, if it is there and can be."""
    with suppress(OSError), directory.opened(_FOLDER) as folder:
        os.unlink(name, dir_fd=folder)


def _listed(folder: int) -> list[EncodedFile]:
    found: list[EncodedFile] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(EncodedFile(status.st_mtime, status.st_size, entry.name))
    return sorted(found)


class EmbeddingFiles:
    """Files of encoded media, `budget` bytes of them. What cannot be written or read is not there, and is logged."""

    def __init__(self, directory: CacheDirectory, budget: int) -> None:
        self._directory = directory
        self.budget = budget

    def read(self, identity: str) -> bytes | None:
        """What was written under an identity, every byte checked; None where that is not to be had."""
        from forerun.cache.directory import READ_FLAGS

        name = _name(identity)
        try:
            with self._directory.opened(_FOLDER) as folder:
                with os.fdopen(os.open(name, READ_FLAGS, dir_fd=folder), "rb") as file:
                    content = file.read(self.budget + 1)
                os.utime(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("encoded media cannot be read: %s", error)
            return None
        encoded = content[_DIGEST:]
        if _digest(identity, encoded) == content[:_DIGEST]:
            return encoded
        logger.warning("%s/%s is torn or tampered with; it is encoded again", _FOLDER, name)
        remove_encoded(self._directory, name)
        return None

    def write(self, identity: str, encoded: bytes) -> None:
        """Keep some bytes where there is room for them, or can be made."""
        nbytes = len(encoded) + _DIGEST
        if nbytes > self.budget:
            return
        from forerun.cache.directory import CREATE_FLAGS

        name = _name(identity)
        partial = f"{name}.{secrets.token_hex(8)}{_PARTIAL}"
        try:
            with self._directory.opened(_FOLDER, creates=True) as folder:
                self._make_room(folder, nbytes)
                with os.fdopen(os.open(partial, CREATE_FLAGS, 0o600, dir_fd=folder), "wb") as file:
                    file.write(_digest(identity, encoded))
                    file.write(encoded)
                os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            logger.warning("encoded media are not kept on disk: %s", error)
            remove_encoded(self._directory, partial)

    def _make_room(self, folder: int, nbytes: int) -> None:
        """Delete what was used longest ago, and what somebody left half written an hour ago."""
        found = _listed(folder)
        used = sum(file.nbytes for file in found)
        for file in sorted(found, key=lambda file: (not file.is_left, file)):
            if not file.is_left and used + nbytes <= self.budget:
                break
            with suppress(FileNotFoundError):
                os.unlink(file.name, dir_fd=folder)
            used -= file.nbytes

    def __repr__(self) -> str:
        return f"EmbeddingFiles({self._directory.path}, {self.budget} bytes)"


def _name(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:32] + _SUFFIX


def _digest(identity: str, encoded: bytes) -> bytes:
    """Of the identity too: a file under another's name is no good."""
    digest = hashlib.sha256(identity.encode() + b"\0")
    digest.update(encoded)
    return digest.digest()
