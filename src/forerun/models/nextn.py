"""Does a GGUF have an MTP (NextN) head that can draft? Says why not where it has one that cannot.

llama.cpp aborts the process where a head's tensors are not what its graph expects, and builds the whole model's graph
over the head's memory where an architecture has NextN layers but no graph for them. So everything is judged here, from
the header.
"""

from __future__ import annotations

from typing import Final

from forerun.models.gguf_header import GgufHeader

_EVERY_HEAD: Final = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
MTP_ARCHITECTURES: Final = {"glm4moe": (*_EVERY_HEAD, "ffn_gate_inp", "ffn_gate_shexp"), "qwen35": _EVERY_HEAD}
"""Architectures whose heads were tried with Forerun, and the tensors that their graphs take for granted."""


def nextn_layers(header: GgufHeader) -> int:
    """NextN layers behind the model's own, 0 without; what the metadata says, whether or not the tensors are there."""
    layers = header.hparam("nextn_predict_layers")
    return layers if isinstance(layers, int) and not isinstance(layers, bool) else 0


def has_mtp(header: GgufHeader) -> bool:
    """Whether the model's head can draft."""
    return why_no_mtp(header) is None


def why_no_mtp(header: GgufHeader) -> str | None:
    """One line on why the model's head cannot draft, None where it can."""
    layers, blocks = nextn_layers(header), header.hparam("block_count")
    if not layers or not isinstance(blocks, int):
        return "the file has no NextN layers"
    if header.architecture not in MTP_ARCHITECTURES:
        known = ", ".join(sorted(MTP_ARCHITECTURES))
        return f"heads of architecture {header.architecture} are not supported yet (supported: {known})"
    if layers != 1:
        return f"the file has {layers} NextN layers; models with exactly one are supported"
    names = {tensor.name for tensor in header.tensors}
    missing = [
        name
        for part in MTP_ARCHITECTURES[header.architecture]
        if (name := f"blk.{blocks - 1}.{part}.weight") not in names
    ]
    return f"the file lacks the head's tensor {missing[0]}" if missing else None
