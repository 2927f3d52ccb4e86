"""Our own reading of GGUF headers: what a file says about itself, without its weights and without native code.

The format is specified in ggml's docs/gguf.md:

    "GGUF" | version u32 | tensor count u64 | key count u64 | key/value pairs | tensor infos | padding | tensor data
    0      4             8                  16              24                               ^ data_start

Files are untrusted: the reader checks every length against the file's end and against the limits in gguf_types. Large
arrays (vocabularies) stay raw bytes and are decoded when asked for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from forerun.errors import ModelFileError
from forerun.models.gguf_types import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_SHOWN_TEXT_BYTES,
    MAX_TENSOR_NAME_BYTES,
    MAX_TENSORS,
    SCALARS,
    SUPPORTED_VERSIONS,
    TENSOR_TYPES,
    ValueType,
)
from forerun.models.header_reader import HeaderReader
from forerun.models.model_file import describe_foreign, open_model_file


@dataclass(frozen=True, slots=True)
class RawArray:
    """An array as it lies in the file: `data` holds `count` elements of type `element`, not yet decoded."""

    element: ValueType
    count: int
    data: bytes

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"RawArray({self.count} x {self.element.name.lower()}, {len(self.data)} bytes)"

    def strings(self) -> list[bytes]:
        """The elements of a string array. Raises TypeError for other arrays."""
        if self.element is not ValueType.STRING:
            raise TypeError(f"an array of {self.element.name.lower()} holds no strings")
        values, at = [], 0
        for _ in range(self.count):
            (length,) = struct.unpack_from("<Q", self.data, at)
            values.append(self.data[at + 8 : at + 8 + length])
            at += 8 + length
        return values

    def numbers(self) -> tuple[int | float | bool, ...]:
        """The elements of a numeric or boolean array. Raises TypeError for string arrays."""
        if self.element is ValueType.STRING:
            raise TypeError("an array of strings holds no numbers")
        return struct.unpack(f"<{self.count}{SCALARS[self.element]}", self.data)


Value = bool | int | float | str | RawArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` in ggml's order (contiguous dimension first), `offset` counted from the data's start.

    `size` is None where the type is one this version of Forerun does not know.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def size(self) -> int | None:
        """Bytes of the tensor's data."""
        kind = TENSOR_TYPES.get(self.type)
        return None if kind is None else -(-self.elements // kind.elements) * kind.nbytes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """Everything a GGUF says before its weights. `metadata` is in the file's order."""

    path: Path
    version: int
    file_size: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_start: int

    def __repr__(self) -> str:
        return (
            f"GgufHeader({str(self.path)!r}, v{self.version}, {self.architecture or 'no architecture'}, "
            f"{len(self.metadata)} keys, {len(self.tensors)} tensors, {self.file_size}/{self.expected_size} bytes)"
        )

    @property
    def architecture(self) -> str | None:
        """`general.architecture`, None where the file does not say."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else None

    @cached_property
    def expected_size(self) -> int:
        """The bytes the file must have for all tensors to be there (tensors of unknown type: up to their start)."""
        ends = [self.data_start + tensor.offset + (tensor.size or 0) for tensor in self.tensors]
        return max(ends, default=self.data_start)

    @property
    def is_truncated(self) -> bool:
        return self.file_size < self.expected_size

    def hparam(self, name: str) -> Value | None:
        """The architecture's own value `name`: hparam("block_count") reads "llama.block_count" of a llama."""
        return self.metadata.get(f"{self.architecture}.{name}")

    def string(self, key: str) -> str | None:
        """The text under `key`, None where it is missing or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """The integer under `key`, None where it is missing or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def array(self, key: str) -> RawArray | None:
        """The array under `key`, None where it is missing or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, RawArray) else None


def read_header(path: Path) -> GgufHeader:
    """Read the header of any GGUF file (a model, a projector, an adapter), complete or cut behind its header.

    Raises ModelNotFoundError where there is no file, ModelFileError where it is no GGUF or its header is malformed or
    truncated. Whether it is a usable model is for `read_model_header` to say.
    """
    with open_model_file(path) as (file, file_size):
        return parse_header(file, path, file_size)


def parse_header(file: BinaryIO, path: Path, file_size: int) -> GgufHeader:
    """The same of a file that is open. Raises ModelFileError."""
    reader = HeaderReader(file, path, file_size)
    version = _version(reader, file_size)
    tensor_count = _count(reader, "tensors", MAX_TENSORS)
    key_count = _count(reader, "metadata keys", MAX_KEYS)
    metadata = _metadata(reader, key_count)
    alignment = _alignment(reader, metadata)
    tensors = _tensors(reader, tensor_count, alignment)
    data_start = -(-reader.position // alignment) * alignment
    return GgufHeader(path, version, file_size, MappingProxyType(metadata), tensors, data_start)


def _version(reader: HeaderReader, file_size: int) -> int:
    head = reader.take(min(file_size, 4))
    if head != MAGIC:
        if MAGIC.startswith(head):
            reader.take(4)  # the file ends within the magic: told as truncated
        rest = reader.take(min(file_size - len(head), 60))
        raise ModelFileError(f"{reader.path}: not a GGUF file: {describe_foreign(head + rest)}")
    version = reader.u32()
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(f"{reader.path}: a big-endian GGUF: convert it for a little-endian machine")
    if version not in SUPPORTED_VERSIONS:
        supported = " and ".join(map(str, SUPPORTED_VERSIONS))
        raise ModelFileError(
            f"{reader.path}: unsupported GGUF version {version}: versions {supported} are read; "
            "convert the model again with a current llama.cpp"
        )
    return version


def _count(reader: HeaderReader, what: str, limit: int) -> int:
    count = reader.u64()
    if count > limit:
        reader.malformed(f"{count} {what}, at most {limit} are allowed")
    return count


def _metadata(reader: HeaderReader, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        reader.where = f"metadata key {index + 1} of {count}"
        key = _name(reader, MAX_KEY_BYTES)
        reader.where = f"metadata key {key!r}"
        if key in metadata:
            reader.malformed("the key appears twice")
        metadata[key] = _value(reader)
    return metadata


def _name(reader: HeaderReader, limit: int) -> str:
    raw = reader.string(limit)
    try:
        return reader.text(raw, "strict")
    except UnicodeDecodeError:
        reader.malformed(f"a name that is not UTF-8: {raw[:40]!r}")


def _value(reader: HeaderReader) -> Value:
    kind = _value_type(reader)
    if kind is ValueType.STRING:
        raw = reader.string()
        return reader.text(raw) if len(raw) <= MAX_SHOWN_TEXT_BYTES else RawArray(ValueType.UINT8, len(raw), raw)
    if kind is ValueType.ARRAY:
        return _array(reader)
    return reader.unpack(SCALARS[kind])


def _array(reader: HeaderReader) -> RawArray:
    element, count = _value_type(reader), reader.u64()
    if element is ValueType.ARRAY:
        reader.malformed("an array of arrays, which no model uses")
    if element is ValueType.STRING:
        return RawArray(element, count, reader.raw_strings(count))
    return RawArray(element, count, reader.raw_numbers(count, struct.calcsize("<" + SCALARS[element])))


def _value_type(reader: HeaderReader) -> ValueType:
    kind = reader.u32()
    try:
        return ValueType(kind)
    except ValueError:
        reader.malformed(f"value type {kind}, the format knows 0 to {max(ValueType)}")


def _alignment(reader: HeaderReader, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    reader.where = "metadata key 'general.alignment'"
    if not isinstance(alignment, int) or not 0 < alignment <= 65_536 or alignment & (alignment - 1):
        reader.malformed(f"{alignment!r}, expected a power of two up to 65536")
    return alignment


def _tensors(reader: HeaderReader, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        reader.where = f"tensor {index + 1} of {count}"
        name = _name(reader, MAX_TENSOR_NAME_BYTES)
        reader.where = f"tensor {name!r}"
        if name in tensors:
            reader.malformed("the tensor appears twice")
        tensors[name] = _tensor(reader, name, alignment)
    return tuple(tensors.values())


def _tensor(reader: HeaderReader, name: str, alignment: int) -> TensorInfo:
    dimensions = reader.u32()
    if dimensions > MAX_DIMENSIONS:
        reader.malformed(f"{dimensions} dimensions, at most {MAX_DIMENSIONS} are allowed")
    shape = tuple(reader.u64() for _ in range(dimensions))
    if math.prod(shape) > MAX_ELEMENTS or max(shape, default=1) > MAX_ELEMENTS:
        reader.malformed(f"shape {list(shape)} has more elements than 64 bits can count")
    kind, offset = reader.u32(), reader.u64()
    if offset % alignment:
        reader.malformed(f"offset {offset} is no multiple of the alignment {alignment}")
    return TensorInfo(name, shape, kind, offset)
