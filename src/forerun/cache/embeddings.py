"""What media were encoded to: kept in host memory, and in files where there is a cache directory, by identity.

    <cache_dir>/media/<digest of the identity>.emb        [ SHA-256 of the rest | embeddings ], 0600

Both have hard budgets; what was used longest ago goes first. A file that is torn or tampered with is as good as none.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # needs a POSIX system; without files none is
    from forerun.cache.directory import CacheDirectory

logger = logging.getLogger(__name__)

_FOLDER: Final = "media"
_SUFFIX: Final = ".emb"
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
        if hashlib.sha256(encoded).digest() == content[:_DIGEST]:
            return encoded
        logger.warning("%s/%s is torn or tampered with; it is encoded again", _FOLDER, name)
        self._remove(name)
        return None

    def write(self, identity: str, encoded: bytes) -> None:
        """Keep some bytes where there is room for them, or can be made."""
        nbytes = len(encoded) + _DIGEST
        if nbytes > self.budget:
            return
        from forerun.cache.directory import CREATE_FLAGS

        name = _name(identity)
        partial = f"{name}.{secrets.token_hex(8)}.tmp"
        try:
            with self._directory.opened(_FOLDER, creates=True) as folder:
                self._make_room(folder, nbytes)
                with os.fdopen(os.open(partial, CREATE_FLAGS, 0o600, dir_fd=folder), "wb") as file:
                    file.write(hashlib.sha256(encoded).digest())
                    file.write(encoded)
                os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            logger.warning("encoded media are not kept on disk: %s", error)
            self._remove(partial)

    def _make_room(self, folder: int, nbytes: int) -> None:
        """Delete what was used longest ago, and what somebody left half written an hour ago."""
        found: list[tuple[float, int, str]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    is_left = entry.name.endswith(".tmp") and status.st_mtime < time.time() - _LEFT_AFTER
                    found.append((0.0 if is_left else status.st_mtime, status.st_size, entry.name))
        used = sum(size for _, size, _ in found)
        for used_at, size, name in sorted(found):
            if used_at and used + nbytes <= self.budget:
                break
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            used -= size

    def _remove(self, name: str) -> None:
        with suppress(OSError), self._directory.opened(_FOLDER) as folder:
            os.unlink(name, dir_fd=folder)

    def __repr__(self) -> str:
        return f"EmbeddingFiles({self._directory.path}, {self.budget} bytes)"


def _name(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:32] + _SUFFIX
