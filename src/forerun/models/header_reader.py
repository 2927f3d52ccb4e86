"""Bounded reading of a file's head: every read is checked against the file's end and against our limits."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NoReturn

from forerun.errors import ModelFileError
from forerun.models.gguf_types import MAX_ARRAY_STRINGS, MAX_HEADER_BYTES, MAX_STRING_BYTES

_FIRST_READ = 1024 * 1024
_LENGTH = struct.Struct("<Q")


class HeaderReader:
    """Reads little-endian values front to back, at most MAX_HEADER_BYTES of them.

    `where` says what is being read ("metadata key 'llama.block_count'"): errors quote it. Plain reads instead of a
    memory map: a file cut short by another process while we look at it then means an error, not SIGBUS.
    """

    def __init__(self, file: BinaryIO, path: Path, file_size: int) -> None:
        self.path = path
        self.where = "the fixed fields"
        self.position = 0
        self._file = file
        self._file_size = file_size
        self._buffer = bytearray()
        self._strings_left = MAX_ARRAY_STRINGS

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        start = self.position
        self._require(start + size)
        self.position = start + size
        return bytes(self._buffer[start : self.position])

    def unpack(self, code: str) -> int | float | bool:
        """One value of the `struct` format `code`."""
        layout = struct.Struct("<" + code)
        value: int | float | bool = layout.unpack(self.take(layout.size))[0]
        return value

    def u32(self) -> int:
        return int(self.unpack("I"))

    def u64(self) -> int:
        return int(self.unpack("Q"))

    def string(self, limit: int = MAX_STRING_BYTES) -> bytes:
        """A length-prefixed string of at most `limit` bytes."""
        length = self.u64()
        if length > limit:
            self.malformed(f"a string of {length} bytes, at most {limit} are allowed")
        return self.take(length)

    def raw_strings(self, count: int) -> bytes:
        """The bytes of `count` strings as they lie in the file; only their lengths are looked at."""
        if count > self._strings_left:
            self.malformed(f"an array of {count} strings, at most {MAX_ARRAY_STRINGS} are allowed in a header")
        self._strings_left -= count
        start = self.position
        self._skip_strings(count)
        return bytes(self._buffer[start : self.position])

    def malformed(self, problem: str) -> NoReturn:
        """Refuse the file, saying where its header is wrong."""
        raise ModelFileError(
            f"{self.path}: malformed GGUF header: {self.where}, near byte {self.position}: {problem}; "
            "fetch or convert the file again"
        )

    def _skip_strings(self, count: int) -> None:
        # The one hot loop of the parser (a vocabulary has up to 262,144 tokens): locals, no calls that can be saved.
        unpack_from, limit = _LENGTH.unpack_from, MAX_STRING_BYTES
        buffer, at, available = self._buffer, self.position, len(self._buffer)
        for index in range(count):
            if at + 8 > available:
                self._require(at + 8)
                available = len(buffer)
            length = unpack_from(buffer, at)[0]
            if length > limit:
                self.position = at
                self.malformed(f"element {index} is a string of {length} bytes, at most {limit} are allowed")
            at += 8 + length
        self._require(at)
        self.position = at

    def _require(self, end: int) -> None:
        """Have the bytes up to `end` in the buffer."""
        if end <= len(self._buffer):
            return
        if end > MAX_HEADER_BYTES:
            self.malformed(f"the header takes at least {end} bytes, at most {MAX_HEADER_BYTES} are allowed")
        if end <= self._file_size:
            wanted = max(end, _FIRST_READ, 2 * len(self._buffer))
            self._buffer += self._file.read(min(wanted, MAX_HEADER_BYTES) - len(self._buffer))
        if end > len(self._buffer):
            # Shorter than it was when opened: someone is cutting it while we read.
            size = len(self._buffer) if end <= self._file_size else self._file_size
            raise ModelFileError(
                f"{self.path}: truncated: the file has {size} bytes, but its header needs at least {end} "
                f"({self.where}); fetch the file again"
            )
