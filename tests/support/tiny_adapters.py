"""Tiny LoRA adapters with random weights, made on demand for any model: strong enough to change what it says.

A recipe fully determines the file, which is named by it, by its base model and by a hash of this code.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.models.gguf_header import GgufHeader, TensorInfo, read_header
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor, f32, text
from tests.support.tiny_models import MODELS_FOLDER

_F32 = 0
_BLOCKS = 8
_ADAPTED = ("attn_v.weight", "attn_output.weight", "ffn_down.weight", "ssm_out.weight", "shortconv.out_proj.weight")


@dataclass(frozen=True, slots=True)
class TinyAdapter:
    """Everything that determines one adapter of a model. `gain`: how large what it adds is for inputs of unit size."""

    seed: int = 0
    rank: int = 4
    gain: float = 0.5
    alpha: float = 8.0


def build_adapter(adapter: TinyAdapter, base: Path, folder: Path = MODELS_FOLDER) -> Path:
    """The file of an adapter for the model `base`, generated if it is not there yet."""
    recipe = f"{adapter!r} {base.name}".encode()
    sources = b"".join(Path(source).read_bytes() for source in (__file__, gguf.__file__))
    path = folder / f"lora-{hashlib.sha256(recipe + sources).hexdigest()[:16]}.gguf"
    if not path.exists():
        assemble_adapter(adapter, read_header(base)).write(path)
    return path


def assemble_adapter(adapter: TinyAdapter, base: GgufHeader) -> GgufFile:
    """The adapter in memory, to be edited (and broken) before it is written."""
    random = np.random.default_rng(adapter.seed)
    tensors: list[Tensor] = []
    for weight in _adapted(base):
        inputs, outputs = weight.shape
        down = random.standard_normal((adapter.rank, inputs)) / np.sqrt(inputs)
        up = random.standard_normal((outputs, adapter.rank)) / np.sqrt(adapter.rank)
        up *= adapter.gain * adapter.rank / adapter.alpha  # llama.cpp scales by alpha / rank
        for suffix, values in (("lora_a", down), ("lora_b", up)):
            shape = tuple(reversed(values.shape))
            tensors.append(Tensor(f"{weight.name}.{suffix}", shape, _F32, values.astype(np.float32).tobytes()))
    entries = {
        "general.architecture": text(base.architecture or ""),
        "general.type": text("adapter"),
        "adapter.type": text("lora"),
        "adapter.lora.alpha": f32(adapter.alpha),
    }
    return GgufFile(entries, tensors)


def _adapted(base: GgufHeader) -> list[TensorInfo]:
    """Matrices of the first blocks, on which later blocks' KV depends. An MTP head's are left as they are."""
    count, heads = base.hparam("block_count"), base.hparam("nextn_predict_layers") or 0
    assert isinstance(count, int)
    assert isinstance(heads, int)
    blocks = [f"blk.{index}." for index in range(min(_BLOCKS, count - heads))]
    names = {block + name for block in blocks for name in _ADAPTED}
    return [tensor for tensor in base.tensors if tensor.name in names and len(tensor.shape) == 2]
