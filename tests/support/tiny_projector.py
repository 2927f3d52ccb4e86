"""Tiny image projectors with random weights, for the models of tiny_models.py and for real ones of any width.

An image costs real preprocessing, real encoding and real positions; what the model sees in it is noise, but other
pixels make other noise, of about the size of its token embeddings.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np

from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor, boolean, f32, f32_array, text, u32
from tests.support.tiny_models import MODELS_FOLDER

PATCH = 14
"""Pixels of a patch's side; four patches, two by two, become one embedding."""
_WIDTH, _HIDDEN, _HEADS = 64, 128, 2
_IMAGE_SIZE = {"qwen2vl_merger": 560, "gemma3": 112}


@dataclass(frozen=True, slots=True)
class TinyProjector:
    """Everything that determines one generated projector: the width of the text model it is for, and the seed."""

    kind: Literal["qwen2vl_merger", "gemma3"] = "qwen2vl_merger"
    """M-RoPE and as many embeddings as a picture needs; or plain positions, 16 embeddings of any picture, and each row
    looks at all others."""
    width: int = 64
    seed: int = 0
    scale: float = 0.3
    """About how large the numbers of an embedding are."""

    @property
    def file_name(self) -> str:
        recipe = "-".join(str(getattr(self, part.name)) for part in fields(self))
        digest = hashlib.sha256(Path(__file__).read_bytes() + Path(gguf.__file__).read_bytes()).hexdigest()[:12]
        return f"projector-{recipe}-{digest}.gguf"


def build_projector(projector: TinyProjector, folder: Path = MODELS_FOLDER) -> Path:
    """The file of `projector`, generated if it is not there yet."""
    path = folder / projector.file_name
    if not path.exists():
        GgufFile(_entries(projector), _Tensors(projector).tensors).write(path)
    return path


def _entries(projector: TinyProjector) -> dict[str, bytes]:
    sizes = {
        "image_size": _IMAGE_SIZE[projector.kind],
        "patch_size": PATCH,
        "embedding_length": _WIDTH,
        "feed_forward_length": _HIDDEN,
        "block_count": 1,
        "projection_dim": projector.width,
        "attention.head_count": _HEADS,
        **({"projector.scale_factor": 2} if projector.kind == "gemma3" else {}),
    }
    return {
        "general.architecture": text("clip"),
        "clip.has_vision_encoder": boolean(True),
        "clip.projector_type": text(projector.kind),
        "clip.use_silu": boolean(False),
        "clip.use_gelu": boolean(False),
        "clip.vision.attention.layer_norm_epsilon": f32(1e-6),
        "clip.vision.image_mean": f32_array([0.5, 0.5, 0.5]),
        "clip.vision.image_std": f32_array([0.25, 0.25, 0.25]),
        **{f"clip.vision.{name}": u32(size) for name, size in sizes.items()},
    }


class _Tensors:
    def __init__(self, projector: TinyProjector) -> None:
        self.tensors: list[Tensor] = []
        self._random = np.random.default_rng(projector.seed)
        self._patches(projector.kind)
        block = "v.blk.0"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            self._linear(f"{block}.{name}", _WIDTH, _WIDTH)
        self._linear(f"{block}.ffn_up", _HIDDEN, _WIDTH)
        self._linear(f"{block}.ffn_down", _WIDTH, _HIDDEN)
        for name in (f"{block}.ln1", f"{block}.ln2", "v.post_ln"):
            self._put(f"{name}.weight", np.ones(_WIDTH, np.float32))
            self._put(f"{name}.bias", np.zeros(_WIDTH, np.float32))
        self._to_text(projector)

    def _patches(self, kind: str) -> None:
        self._random_tensor("v.patch_embd.weight", (_WIDTH, 3, PATCH, PATCH))
        if kind == "gemma3":
            self._put("v.patch_embd.bias", np.zeros(_WIDTH, np.float32))
            self._random_tensor("v.position_embd.weight", ((_IMAGE_SIZE[kind] // PATCH) ** 2, _WIDTH))
        else:  # a second one, of the next picture of a video
            self._random_tensor("v.patch_embd.weight.1", (_WIDTH, 3, PATCH, PATCH))

    def _to_text(self, projector: TinyProjector) -> None:
        if projector.kind == "gemma3":
            self._put("mm.soft_emb_norm.weight", np.ones(_WIDTH, np.float32))
            self._random_tensor("mm.input_projection.weight", (_WIDTH, projector.width), projector.scale)
            return
        merged = 4 * _WIDTH
        self._linear("mm.0", merged, merged)
        self._linear("mm.2", projector.width, merged, 2 * projector.scale)

    def _linear(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        self._random_tensor(f"{name}.weight", (rows, columns), gain)
        self._put(f"{name}.bias", np.zeros(rows, np.float32))

    def _random_tensor(self, name: str, shape: tuple[int, ...], gain: float = 1.0) -> None:
        inputs = int(np.prod(shape[1:]))
        self._put(name, self._random.standard_normal(shape, np.float32) * np.float32(gain / np.sqrt(inputs)))

    def _put(self, name: str, values: np.typing.NDArray[np.float32]) -> None:
        self.tensors.append(Tensor(name, tuple(reversed(values.shape)), 0, values.astype(np.float32).tobytes()))
