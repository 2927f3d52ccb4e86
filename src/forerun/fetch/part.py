"""What is here of a file that is being fetched: `NAME.part`; and what is known of it, in `NAME.part.json` beside it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from forerun.models.user_cache import read_json, write_json

_CHUNK: Final = 8 * 2**20
HEAD_BYTES: Final = 64


class Part:
    """The first bytes of a file, open for more, with the SHA-256 of what is there.

    `told`: what the file is called; bytes that came under another name are not gone on with.
    """

    def __init__(self, path: Path, told: str) -> None:
        self.path, self.told = path, told
        self.size = 0
        self.total: int | None = None
        """Bytes of the whole file, as far as that is known."""
        self.validator: str | None = None
        """Under which ETag or date of change the bytes came."""
        self.head = b""
        """The first HEAD_BYTES."""
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None

    def __repr__(self) -> str:
        return f"Part({self.path.name!r}, {self.size} of {self.total} bytes)"

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are here, right or not."""
        return self.size == self.total

    @property
    def sha256(self) -> str:
        """Of the bytes that are here."""
        return self._digest.hexdigest()

    async def read(self) -> None:
        """Go on from what an earlier pull left: hashed again, since nobody knows what became of it meanwhile."""
        self._note_from(read_json(self._note))
        self._file = self.path.open("r+b" if self.path.exists() else "w+b")
        while chunk := await asyncio.to_thread(self._file.read, _CHUNK):
            await asyncio.to_thread(self._count, chunk)

    def expect(self, total: int, validator: str | None) -> None:
        """What the server says about the whole file."""
        if (total, validator) != (self.total, self.validator):
            self.total, self.validator = total, validator
            write_json(self._note, {"told": self.told, "total": total, "validator": validator})

    def append(self, chunk: bytes) -> None:
        """The next bytes. Raises OSError where they cannot be written."""
        self._opened.write(chunk)
        self._count(chunk)

    def restart(self) -> None:
        """Forget all bytes, and what was said about them."""
        self._opened.seek(0)
        self._opened.truncate()
        self._note.unlink(missing_ok=True)
        self.size, self.total, self.validator, self.head = 0, None, None, b""
        self._digest = hashlib.sha256()

    def flush(self) -> None:
        """What came is in the file, for whoever goes on with it."""
        self._opened.flush()

    async def settle(self) -> None:
        """What came is on the disk."""
        self.flush()
        await asyncio.to_thread(os.fsync, self._opened.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ValueError(f"{self!r} was not read")
        return self._file

    def _count(self, chunk: bytes) -> None:
        if len(self.head) < HEAD_BYTES:
            self.head += chunk[: HEAD_BYTES - len(self.head)]
        self._digest.update(chunk)
        self.size += len(chunk)

    def _note_from(self, note: object) -> None:
        if not isinstance(note, dict) or note.get("told") != self.told:
            return
        total, validator = note.get("total"), note.get("validator")
        self.total = total if isinstance(total, int) and total >= 0 else None
        self.validator = validator if isinstance(validator, str) else None
