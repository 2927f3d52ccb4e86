"""One stored segment as bytes: the states of its runs behind a table that says what each of them is.

    [ "frs1" | count ][ part | part | ... ][ state | state | ... ]
      4        4        24 bytes each        nbytes each, in the order of the table

Little-endian. Target and draft are parts of one value, so neither can be restored without the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.buffers import new_buffer

Bytes: TypeAlias = NDArray[np.uint8]

_MAGIC = int.from_bytes(b"frs1", "little")
_HEADER = np.dtype([("magic", "<u4"), ("count", "<u4")])
_PART = np.dtype([("memory", "<i4"), ("start", "<i4"), ("stop", "<i4"), ("unused", "<i4"), ("nbytes", "<u8")])


class Memory(IntEnum):
    """Whose memory a part belongs to."""

    TARGET = 0
    DRAFT = 1
    TAIL = 2
    """What the drafter keeps beside its memory (`LlamaDrafter.tail`)."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a run of positions [start, stop) takes in one memory."""

    memory: Memory
    start: int
    stop: int
    nbytes: int


def table_bytes(parts: int) -> int:
    """What so many parts take beside their states."""
    return _HEADER.itemsize + parts * _PART.itemsize


def pack(parts: Sequence[Part]) -> tuple[Bytes, list[Bytes]]:
    """A buffer with its table filled in, and where in it the states go, in order; they are to be written there."""
    sizes = [part.nbytes for part in parts]
    start = table_bytes(len(parts))
    buffer = np.frombuffer(new_buffer(start + sum(sizes)), np.uint8)
    buffer[: _HEADER.itemsize].view(_HEADER)[0] = (_MAGIC, len(parts))
    table = buffer[_HEADER.itemsize : start].view(_PART)
    for row, part in enumerate(parts):
        table[row] = (part.memory, part.start, part.stop, 0, part.nbytes)
    return buffer, _slices(buffer, start, sizes)


def unpack(state: bytes | memoryview) -> list[tuple[Part, Bytes]]:
    """The parts of a packed segment and their states: views, nothing is copied. Raises ValueError for other bytes."""
    buffer = np.frombuffer(state, np.uint8)
    if buffer.size < _HEADER.itemsize:
        raise ValueError(f"a segment of {buffer.size} bytes")
    magic, count = buffer[: _HEADER.itemsize].view(_HEADER)[0].item()
    start = table_bytes(count)
    if magic != _MAGIC or start > buffer.size:
        raise ValueError(f"no segment: it begins with {bytes(buffer[: _HEADER.itemsize])!r}")
    rows = buffer[_HEADER.itemsize : start].view(_PART).tolist()
    sizes = [nbytes for *_, nbytes in rows]
    if start + sum(sizes) != buffer.size:
        raise ValueError(f"a segment of {start + sum(sizes)} bytes came as {buffer.size}")
    parts = [Part(Memory(memory), first, stop, nbytes) for memory, first, stop, _, nbytes in rows]
    return list(zip(parts, _slices(buffer, start, sizes), strict=True))


def _slices(buffer: Bytes, start: int, sizes: Sequence[int]) -> list[Bytes]:
    slices = []
    for size in sizes:
        slices.append(buffer[start : start + size])
        start += size
    return slices
