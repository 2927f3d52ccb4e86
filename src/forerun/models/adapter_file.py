"""Is this GGUF a LoRA adapter for a model? Told before llama.cpp sees it, which ends the process for some that are not.

For each weight W of the model that it adapts an adapter has two matrices: W x + scale * alpha / rank * B (A x). The
format is llama.cpp's (convert_lora_to_gguf.py, llama-adapter.cpp).
"""

from __future__ import annotations

from pathlib import Path

from forerun.errors import ModelFileError
from forerun.models.gguf_header import GgufHeader, TensorInfo, read_header

_A, _B = ".lora_a", ".lora_b"
_EMBEDDING = "token_embd.weight"


def read_adapter_header(path: Path, base: GgufHeader) -> GgufHeader:
    """The header of a LoRA adapter that fits `base`.

    Raises ModelNotFoundError or ModelFileError, naming the path and why it cannot be used.
    """
    header = read_header(path)
    _check_kind(header)
    if header.architecture != base.architecture:
        made_for = f"an adapter for {header.architecture} models, but {base.path.name} is {base.architecture}"
        raise ModelFileError(f"{path}: {made_for}")
    if header.is_truncated:
        sizes = f"{header.file_size} bytes of the {header.expected_size}"
        raise ModelFileError(f"{path}: truncated: the file has {sizes} its header announces; fetch the file again")
    pairs = _pairs(header)
    if (base.integer("split.count") or 1) == 1:  # else the other parts have the rest, and llama.cpp will say
        weights = {tensor.name: tensor for tensor in base.tensors}
        for name, (down, up) in pairs.items():
            _check_pair(path, base, weights.get(name), name, (down.shape, up.shape))
        if _EMBEDDING in pairs and "output.weight" not in weights:
            shared = "the token embedding, which this model also uses as its output"
            raise ModelFileError(f"{path}: it adapts {shared}: llama.cpp cannot apply that")
    return header


def _check_kind(header: GgufHeader) -> None:
    kind, adapts = header.string("general.type"), header.string("adapter.type")
    if kind != "adapter":
        raise ModelFileError(f"{header.path}: not an adapter (general.type is {kind or 'not given'}): give a LoRA file")
    if adapts != "lora":
        raise ModelFileError(f"{header.path}: an adapter of type {adapts or 'unknown'}: only LoRA is supported")
    if "adapter.alora.invocation_tokens" in header.metadata:
        raise ModelFileError(f"{header.path}: an activated LoRA, for a part of each prompt only: not supported")
    if not isinstance(header.metadata.get("adapter.lora.alpha", 0.0), float):
        raise ModelFileError(f"{header.path}: metadata key 'adapter.lora.alpha' is no float: convert the adapter again")


def _pairs(header: GgufHeader) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """A and B of every weight that is adapted."""
    tensors = {tensor.name: tensor for tensor in header.tensors if not tensor.name.endswith("_norm.weight")}
    names = [name.removesuffix(_A) for name in tensors if name.endswith(_A)]
    expected = {name + suffix for name in names for suffix in (_A, _B)}
    if not names or tensors.keys() != expected:
        odd = sorted(tensors.keys() ^ expected)
        what = f"tensor {odd[0]!r} has no place in it, or none beside it" if odd else "it has no tensors"
        raise ModelFileError(f"{header.path}: no LoRA adapter as llama.cpp has them: {what}; convert it again")
    return {name: (tensors[name + _A], tensors[name + _B]) for name in names}


def _check_pair(
    path: Path, base: GgufHeader, weight: TensorInfo | None, name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Whether a pair fits its weight. Shapes have the contiguous dimension first: A is (inputs, rank)."""
    foreign = f"{path}: an adapter for another model than {base.path.name}"
    if weight is None:
        raise ModelFileError(f"{foreign}, which has no {name!r}")
    down, up = shapes
    if min(len(down), len(up), len(weight.shape)) < 2:
        raise ModelFileError(f"{foreign}: {name!r} is {list(weight.shape)} there, {list(down)} and {list(up)} here")
    (inputs, outputs), rest = weight.shape[:2], weight.shape[2:]
    if name == _EMBEDDING:  # looked up, not multiplied: A has a row for each token
        fits = down[1:] == (outputs,) and up == (down[0], inputs)
    else:
        fits = down == (inputs, up[0], *rest) and up[1:] == (outputs, *rest)
    if not fits:
        raise ModelFileError(f"{foreign}: {name!r} is {list(weight.shape)} there, {list(down)} and {list(up)} here")
