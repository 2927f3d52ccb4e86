"""Bounded reading of a file's head: every read is checked against the file's end and against our limits."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from forerun.errors import ModelFileError
from forerun.models.gguf_types import (
    MAX_ARRAY_ELEMENTS,
    MAX_HEADER_BYTES,
    MAX_STRING_BYTES,
    MAX_TEXT_BYTES,
)

_WINDOW: Final = 1024 * 1024
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class HeaderReader:
    """Reads little-endian values front to back, at most MAX_HEADER_BYTES of them, and holds a window of the file.

    `where` says what is being read ("metadata key 'llama.block_count'"): errors quote it. Plain reads instead of a
    memory map: a file cut short by another process while we look at it then means an error, not SIGBUS.
    """

    def __init__(self, file: BinaryIO, path: Path, file_size: int) -> None:
        self.path = path
        self.where = "the fixed fields"
        self.position = 0
        self._file = file
        self._file_size = file_size
        self._window = b""
        self._start = 0
        """Where in the file the window begins."""
        self._elements_left = MAX_ARRAY_ELEMENTS
        self._text_left = MAX_TEXT_BYTES

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > _WINDOW:
            taken = self._read(size)
            self._window, self._start = b"", self.position + size
        else:
            at = self._offset_of(size)
            taken = self._window[at : at + size]
        self.position += size
        return taken

    def unpack(self, code: str) -> int | float | bool:
        """One value of the `struct` format `code`."""
        layout = struct.Struct("<" + code)
        value: int | float | bool = layout.unpack(self.take(layout.size))[0]
        return value

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self, limit: int = MAX_STRING_BYTES) -> bytes:
        """A length-prefixed string of at most `limit` bytes."""
        length = self.u64()
        if length > limit:
            self.malformed(f"a string of {length} bytes, at most {limit} are allowed")
        return self.take(length)

    def text(self, raw: bytes, errors: str = "replace") -> str:
        """A string as text, which may take four times the memory: all of a header together MAX_TEXT_BYTES.

        Raises UnicodeDecodeError with `errors` "strict".
        """
        self._text_left -= len(raw)
        if self._text_left < 0:
            self.malformed(f"names and texts of more than {MAX_TEXT_BYTES} bytes in all")
        return raw.decode(errors=errors)

    def raw_numbers(self, count: int, size: int) -> bytes:
        """The bytes of `count` numbers of `size` bytes each."""
        self._count_elements(count)
        return self.take(count * size)

    def raw_strings(self, count: int) -> bytes:
        """The bytes of `count` strings as they lie in the file; only their lengths are looked at."""
        self._count_elements(count)
        start = self.position
        end = self._end_of_strings(count)
        self.position = start
        return self.take(end - start)

    def malformed(self, problem: str) -> NoReturn:
        """Refuse the file, saying where its header is wrong."""
        raise ModelFileError(
            f"{self.path}: malformed GGUF header: {self.where}, near byte {self.position}: {problem}; "
            "fetch or convert the file again"
        )

    def _count_elements(self, count: int) -> None:
        if count > self._elements_left:
            self.malformed(f"an array of {count} elements, at most {MAX_ARRAY_ELEMENTS} are allowed in a header")
        self._elements_left -= count

    def _end_of_strings(self, count: int) -> int:
        """Where `count` strings from here on end."""
        # The one hot loop of the parser (a vocabulary has up to 262,144 tokens): locals, no calls that can be saved.
        unpack_from, limit = _U64.unpack_from, MAX_STRING_BYTES
        window, start = self._window, self._start
        at, last = self.position - start, len(window) - 8
        for index in range(count):
            if at > last:
                self.position = start + at
                at = self._offset_of(8)
                window, start = self._window, self._start
                last = len(window) - 8
            length = unpack_from(window, at)[0]
            if length > limit:
                self.position = start + at
                self.malformed(f"element {index} is a string of {length} bytes, at most {limit} are allowed")
            at += 8 + length
        return start + at

    def _offset_of(self, size: int) -> int:
        """Where in the window the next `size` bytes begin; reads the window anew where they are not in it."""
        at = self.position - self._start
        if not 0 <= at <= len(self._window) - size:
            self._window = self._read(size, max(size, min(_WINDOW, self._file_size - self.position)))
            self._start, at = self.position, 0
        return at

    def _read(self, size: int, most: int | None = None) -> bytes:
        """From `position` on `size` bytes, or up to `most` where there are so many."""
        end = self.position + size
        if end > MAX_HEADER_BYTES:
            self.malformed(f"the header takes at least {end} bytes, at most {MAX_HEADER_BYTES} are allowed")
        found = b""
        if end <= self._file_size:
            self._file.seek(self.position)
            found = self._file.read(size if most is None else most)
        if len(found) < size:
            # Shorter than it was when opened where it should have been enough: someone is cutting it while we read.
            file_size = self.position + len(found) if end <= self._file_size else self._file_size
            raise ModelFileError(
                f"{self.path}: truncated: the file has {file_size} bytes, but its header needs at least {end} "
                f"({self.where}); fetch the file again"
            )
        return found
