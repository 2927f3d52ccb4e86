"""A GGUF file held as raw key/value bytes: easy to copy from, to edit and to break on purpose.

Written against the format's own description (ggml, docs/gguf.md), independently of
`forerun.models.gguf_header`, so that the two check one another. For tests only: it trusts what it reads.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_SIZES = {UINT8: 1, INT8: 1, UINT16: 2, INT16: 2, UINT32: 4, INT32: 4, FLOAT32: 4, BOOL: 1}
_SIZES |= {UINT64: 8, INT64: 8, FLOAT64: 8}


def u32(value: int) -> bytes:
    """A uint32 value with its type, as `GgufFile.entries` holds them."""
    return struct.pack("<II", UINT32, value)


def i32(value: int) -> bytes:
    return struct.pack("<Ii", INT32, value)


def f32(value: float) -> bytes:
    return struct.pack("<If", FLOAT32, value)


def boolean(value: bool) -> bytes:  # noqa: FBT001 (the value itself, not a switch)
    return struct.pack("<IB", BOOL, value)


def text(value: str) -> bytes:
    return struct.pack("<I", STRING) + raw_string(value.encode())


def u32_array(values: Sequence[int]) -> bytes:
    return struct.pack(f"<IIQ{len(values)}I", ARRAY, UINT32, len(values), *values)


def i32_array(values: Sequence[int]) -> bytes:
    return struct.pack(f"<IIQ{len(values)}i", ARRAY, INT32, len(values), *values)


def f32_array(values: Sequence[float]) -> bytes:
    return struct.pack(f"<IIQ{len(values)}f", ARRAY, FLOAT32, len(values), *values)


def string_array(values: Sequence[bytes]) -> bytes:
    return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(raw_string, values))


def raw_string(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def strings_of(entry: bytes) -> list[bytes]:
    """The elements of a string array entry."""
    _, _, count = struct.unpack_from("<IIQ", entry)
    values, at = [], 16
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", entry, at)
        values.append(entry[at + 8 : at + 8 + length])
        at += 8 + length
    return values


@dataclass
class Tensor:
    """`shape` in ggml's order: the contiguous dimension first."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    data: bytes


@dataclass
class GgufFile:
    """Key/value pairs (value type and payload as they lie in the file) and tensors."""

    entries: dict[str, bytes] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)

    def header_bytes(self) -> bytes:
        parts = [MAGIC, struct.pack("<IQQ", VERSION, len(self.tensors), len(self.entries))]
        parts += [raw_string(key.encode()) + value for key, value in self.entries.items()]
        offset = 0
        for tensor in self.tensors:
            parts.append(raw_string(tensor.name.encode()))
            parts.append(struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape))
            parts.append(struct.pack("<IQ", tensor.ggml_type, offset))
            offset += _padded(len(tensor.data))
        header = b"".join(parts)
        return header + bytes(_padded(len(header)) - len(header))

    def write(self, path: Path) -> None:
        """Write atomically: whoever sees `path` sees a whole file, also while several processes make it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with partial.open("wb") as file:
            file.write(self.header_bytes())
            for tensor in self.tensors:
                file.write(tensor.data)
                file.write(bytes(_padded(len(tensor.data)) - len(tensor.data)))
        partial.replace(path)


def read_entries(path: Path) -> dict[str, bytes]:
    """The key/value pairs of a GGUF, each as raw bytes, its type in front."""
    with path.open("rb") as file:
        magic, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        if magic != MAGIC:
            raise ValueError(f"{path} is no GGUF")
        return dict(_read_entry(file) for _ in range(count))


def _read_entry(file: BinaryIO) -> tuple[str, bytes]:
    key = _read_string(file)[8:].decode()
    kind = file.read(4)
    return key, kind + _read_value(file, *struct.unpack("<I", kind))


def _read_value(file: BinaryIO, kind: int) -> bytes:
    if kind == STRING:
        return _read_string(file)
    if kind != ARRAY:
        return file.read(_SIZES[kind])
    head = file.read(12)
    element, count = struct.unpack("<IQ", head)
    if element in _SIZES:
        return head + file.read(_SIZES[element] * count)
    return head + b"".join(_read_value(file, element) for _ in range(count))


def _read_string(file: BinaryIO) -> bytes:
    head = file.read(8)
    return head + file.read(*struct.unpack("<Q", head))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
