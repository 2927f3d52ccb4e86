"""What a GGUF says it is, in numbers and words: from the headers of all its parts, without weights and native code."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.errors import ModelError
from forerun.models.gguf_header import GgufHeader, RawArray, TensorInfo, Value, read_header
from forerun.models.gguf_types import FILE_TYPES, TENSOR_TYPES, ValueType
from forerun.models.nextn import nextn_layers, why_no_mtp
from forerun.models.package import part_paths

_KINDS: Final = {
    "adapter": "LoRA adapter",
    "imatrix": "importance matrix",
    "clip": "projector",
    "mmproj": "projector",
}
_POOLING: Final = ("none", "mean", "cls", "last", "rank")
"""llama.cpp's llama_pooling_type by number."""
_BLOCK: Final = re.compile(r"blk\.(\d{1,9})\.(\w+)")
_STATEFUL: Final = ("ssm_", "shortconv", "time_mix_")
"""How the tensors begin that keep a state: state spaces and delta nets, short convolutions, RWKV."""
_MOST_LAYERS: Final = 4_096
"""Arrays with a value a layer are not longer than that."""
_MOST_SECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class FilePart:
    """One file of a model."""

    path: Path
    size: int | None
    """Bytes; None where it is not there, or is no part of this model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyDescription:
    """What turns text into tokens."""

    kind: str
    """tokenizer.ggml.model: "gpt2" is BPE, "llama" SentencePiece, and so on."""
    pre: str | None
    """How text is cut before BPE."""
    tokens: int
    merges: int
    bos: int | None
    eos: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShare:
    """Tensors of one type."""

    type: str
    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A GGUF in numbers. None, 0 or an empty tuple where the file says nothing of the kind."""

    parts: tuple[FilePart, ...]
    """One file, or all parts of a split one in order."""
    kind: str
    """"model", "embedding model", "LoRA adapter", "projector", "vocabulary" or "importance matrix"."""
    version: int
    """Of the format."""
    architecture: str | None
    name: str | None
    licence: str | None
    parameters: int
    file_type: str | None
    """What most tensors are, and how the others were chosen: "Q4_K_M"."""
    tensors: tuple[TensorShare, ...]
    """By type, the most bytes first."""
    context_length: int | None
    original_context_length: int | None
    """Tokens it was trained for before its context was extended."""
    layers: int | None
    embedding_length: int | None
    heads: int | None
    kv_heads: tuple[int, ...]
    """One number, or one for each layer where they differ."""
    experts: int
    experts_used: int
    vocabulary: VocabularyDescription | None
    template: int
    """Characters of the chat template, 0 without one."""
    template_has_tools: bool
    sliding_window: int
    """Tokens that some or all layers see."""
    stateful_layers: int
    """Layers that keep a state which every token changes."""
    attention_layers: int
    nextn_layers: int
    why_no_mtp: str | None
    """Why the model's own head cannot draft; None where it can."""
    rope_base: float | None
    rope_sections: tuple[int, ...]
    """How M-RoPE divides a head's dimensions among time, height and width."""
    rope_scaling: str | None
    pooling: str | None
    base_model: str | None
    """Of an adapter: the architecture that it is for."""

    @property
    def size(self) -> int:
        """Bytes of all parts that are here."""
        return sum(part.size or 0 for part in self.parts)

    @property
    def missing(self) -> tuple[Path, ...]:
        """Parts that are not here."""
        return tuple(part.path for part in self.parts if part.size is None)

    @property
    def bits_per_parameter(self) -> float:
        return 8 * sum(share.nbytes for share in self.tensors) / max(1, self.parameters)

    @property
    def memory(self) -> str:
        """The kind of memory that a context of it has, in words."""
        window = f"sliding window of {self.sliding_window} tokens" if self.sliding_window else ""
        if not self.stateful_layers:
            return window or "dense"
        if not self.attention_layers:
            return f"recurrent, {self.stateful_layers} layers"
        layers = f"{self.stateful_layers} recurrent layers, {self.attention_layers} with attention"
        return f"hybrid: {layers}{f', {window}' if window else ''}"


def describe(path: Path) -> ModelDescription:
    """What the file at `path` is, and the parts beside it if it has any.

    Reads headers only. Raises ModelNotFoundError or ModelFileError for the file itself; a part that is missing, or is
    something else, is told as missing.
    """
    first = read_header(path)
    parts, tensors = [], list(first.tensors)
    for part in part_paths(first):
        header = first if part == path else _part(part, first)
        parts.append(FilePart(part, None if header is None else header.file_size))
        if header is not None and header is not first:
            tensors += header.tensors
    return description_of(first, tuple(parts), tensors)


def _part(path: Path, first: GgufHeader) -> GgufHeader | None:
    try:
        header = read_header(path)
    except ModelError:
        return None
    return header if header.integer("split.count") == first.integer("split.count") else None


def description_of(header: GgufHeader, parts: tuple[FilePart, ...], tensors: Sequence[TensorInfo]) -> ModelDescription:
    """What the header of a first part says, and the tensors of all parts."""
    stateful, attention = _layers(tensors)
    is_adapter = header.string("general.type") == "adapter"
    file_type = header.integer("general.file_type")
    template = header.string("tokenizer.chat_template") or ""
    return ModelDescription(
        parts=parts,
        kind=_kind(header),
        version=header.version,
        architecture=header.architecture,
        name=header.string("general.name"),
        licence=header.string("general.license"),
        parameters=sum(tensor.elements for tensor in tensors),
        file_type=None if file_type is None else FILE_TYPES.get(file_type, f"type {file_type}"),
        tensors=_shares(tensors),
        context_length=_integer(header, "context_length"),
        original_context_length=_integer(header, "rope.scaling.original_context_length"),
        layers=_integer(header, "block_count"),
        embedding_length=_integer(header, "embedding_length"),
        heads=_integer(header, "attention.head_count"),
        kv_heads=_for_each_layer(header.hparam("attention.head_count_kv")),
        experts=_integer(header, "expert_count") or 0,
        experts_used=_integer(header, "expert_used_count") or 0,
        vocabulary=_vocabulary(header),
        template=len(template),
        template_has_tools="tools" in template,
        sliding_window=_integer(header, "attention.sliding_window") or 0,
        stateful_layers=stateful,
        attention_layers=attention,
        nextn_layers=nextn_layers(header),
        why_no_mtp=why_no_mtp(header),
        rope_base=_number(header.hparam("rope.freq_base")),
        rope_sections=_whole(header.hparam("rope.dimension_sections"), _MOST_SECTIONS),
        rope_scaling=_scaling(header),
        pooling=_pooling(header),
        base_model=header.architecture if is_adapter else None,
    )


def _kind(header: GgufHeader) -> str:
    for key in ("general.type", "general.architecture"):
        if kind := _KINDS.get(header.string(key) or ""):
            return kind
    if not header.tensors and not header.integer("split.count"):
        return "vocabulary"
    return "embedding model" if _pooling(header) not in (None, "none") else "model"


def _shares(tensors: Sequence[TensorInfo]) -> tuple[TensorShare, ...]:
    counts: Counter[int] = Counter()
    nbytes: Counter[int] = Counter()
    for tensor in tensors:
        counts[tensor.type] += 1
        nbytes[tensor.type] += tensor.size or 0
    return tuple(
        TensorShare(type=_type_name(kind), tensors=counts[kind], nbytes=nbytes[kind])
        for kind in sorted(counts, key=lambda kind: (-nbytes[kind], kind))
    )


def _type_name(kind: int) -> str:
    known = TENSOR_TYPES.get(kind)
    return f"type {kind}" if known is None else known.name


def _layers(tensors: Sequence[TensorInfo]) -> tuple[int, int]:
    """How many layers keep a state, and how many have attention; some have both.

    Judged by the tensors and not by the architecture: so it is right for those that are not known here.
    """
    stateful, attention = set(), set()
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match is None:
            continue
        if match[2].startswith(_STATEFUL):
            stateful.add(match[1])
        elif match[2] == "attn_output":
            attention.add(match[1])
    return len(stateful), len(attention)


def _vocabulary(header: GgufHeader) -> VocabularyDescription | None:
    kind = header.string("tokenizer.ggml.model")
    if kind is None:
        return None
    tokens, merges = header.array("tokenizer.ggml.tokens"), header.array("tokenizer.ggml.merges")
    return VocabularyDescription(
        kind=kind,
        pre=header.string("tokenizer.ggml.pre"),
        tokens=0 if tokens is None else len(tokens),
        merges=0 if merges is None else len(merges),
        bos=header.integer("tokenizer.ggml.bos_token_id"),
        eos=header.integer("tokenizer.ggml.eos_token_id"),
    )


def _integer(header: GgufHeader, name: str) -> int | None:
    return header.integer(f"{header.architecture}.{name}")


def _number(value: Value | None) -> float | None:
    """A finite number: JSON has no others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _for_each_layer(value: Value | None) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    numbers = _whole(value, _MOST_LAYERS)
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def _whole(value: Value | None, most: int) -> tuple[int, ...]:
    """An array of whole numbers, up to `most` of them."""
    if not isinstance(value, RawArray) or len(value) > most:
        return ()
    if value.element in (ValueType.STRING, ValueType.BOOL, ValueType.FLOAT32, ValueType.FLOAT64):
        return ()
    return tuple(int(number) for number in value.numbers())


def _scaling(header: GgufHeader) -> str | None:
    value, factor = header.hparam("rope.scaling.type"), _number(header.hparam("rope.scaling.factor"))
    if not isinstance(value, str) or value == "none":
        return None
    return value if factor is None else f"{value}, {factor:g} times"


def _pooling(header: GgufHeader) -> str | None:
    number = _integer(header, "pooling_type")
    return _POOLING[number] if number is not None and 0 <= number < len(_POOLING) else None
