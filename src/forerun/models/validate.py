"""Is this GGUF a model we can hand to the native library? Says what it is where it is something else."""

from __future__ import annotations

import math
from pathlib import Path

from forerun.errors import ModelFileError
from forerun.models.gguf_header import GgufHeader, RawArray, Value, read_header

# What other kinds of GGUF declare themselves as, in general.type or general.architecture.
_OTHER_KINDS = {
    "clip": "an image or audio projector (mmproj), not a language model: give the language model here",
    "mmproj": "an image or audio projector (mmproj), not a language model: give the language model here",
    "adapter": "an adapter (LoRA), not a model: give the base model here",
    "imatrix": "an importance matrix, not a model",
    "vocab": "a vocabulary without weights, not a model",
}
# llama.cpp needs these for every architecture (llama_model_base::load_hparams, llama_vocab::impl::load).
_HPARAMS = ("block_count", "context_length", "embedding_length")
_TOKENIZER = "tokenizer.ggml.model"


def read_model_header(path: Path) -> GgufHeader:
    """Read and check the header of a language model; fast (well under 0.3 s), and without native code.

    Raises ModelNotFoundError or ModelFileError, naming the path and the kind of fault.
    """
    header = read_header(path)
    check_model_header(header)
    return header


def check_model_header(header: GgufHeader) -> None:
    """Whether a header is that of a language model, whole. Raises ModelFileError."""
    _check_kind(header)
    _check_part(header)
    _check_keys(header)
    _check_epsilons(header)
    _check_complete(header)


def _check_kind(header: GgufHeader) -> None:
    for key in ("general.type", "general.architecture"):
        other = _OTHER_KINDS.get(header.string(key) or "")
        if other:
            raise ModelFileError(f"{header.path}: this is {other}")


def _check_part(header: GgufHeader) -> None:
    number, count = header.integer("split.no"), header.integer("split.count")
    if number:
        raise ModelFileError(
            f"{header.path}: part {number + 1} of {count} of a model: give the first part (...-00001-of-...), "
            "the others are found beside it"
        )


def _check_keys(header: GgufHeader) -> None:
    architecture = header.string("general.architecture")
    if not architecture:
        _refuse_key(header, "general.architecture", "a text", header.metadata.get("general.architecture"))
    for name in _HPARAMS:
        key = f"{architecture}.{name}"
        number = header.integer(key)
        if number is None or number <= 0:
            _refuse_key(header, key, "a positive integer", header.metadata.get(key))
    if header.string(_TOKENIZER) is None:
        _refuse_key(header, _TOKENIZER, "a text", header.metadata.get(_TOKENIZER))
    if not header.tensors:
        raise ModelFileError(f"{header.path}: the file holds no tensors: a vocabulary without weights, not a model")


def _check_epsilons(header: GgufHeader) -> None:
    # llama.cpp asserts these in the first decode only: neither its loading nor our probe would notice.
    for key, value in header.metadata.items():
        if key.endswith("_epsilon") and not (isinstance(value, float) and 0 <= value < math.inf):
            _refuse_key(header, key, "a finite number of at least 0", value)


def _refuse_key(header: GgufHeader, key: str, expected: str, value: Value | None) -> None:
    if value is None:
        raise ModelFileError(f"{header.path}: the mandatory metadata key {key!r} is missing; convert the model again")
    shown = f"an array of {len(value)}" if isinstance(value, RawArray) else repr(value)[:80]
    raise ModelFileError(
        f"{header.path}: metadata key {key!r} is {shown}, expected {expected}; convert the model again"
    )


def _check_complete(header: GgufHeader) -> None:
    if header.is_truncated:
        raise ModelFileError(
            f"{header.path}: truncated: the file has {header.file_size} bytes of the {header.expected_size} "
            "its header announces; fetch the file again"
        )
