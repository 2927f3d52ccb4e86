"""Tiny projectors with random weights, for the models of tiny_models.py and for real ones of any width.

An image or a recording costs real preprocessing, real encoding and real positions; what the model makes of it is noise,
but other pixels and other sounds make other noise, of about the size of its token embeddings.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np

from tests.support import gguf_file as gguf
from tests.support import random_tensors, tiny_audio
from tests.support.gguf_file import GgufFile, boolean, f32, f32_array, text, u32
from tests.support.random_tensors import RandomTensors
from tests.support.tiny_models import MODELS_FOLDER

PATCH = 14
"""Pixels of a patch's side; four patches, two by two, become one embedding."""
_WIDTH, _HIDDEN, _HEADS = 64, 128, 2
_IMAGE_SIZE = {"qwen2vl_merger": 560, "gemma3": 112}


@dataclass(frozen=True, slots=True)
class TinyProjector:
    """Everything that determines one generated projector: the width of the text model it is for, and the seed."""

    kind: Literal["qwen2vl_merger", "gemma3"] | None = "qwen2vl_merger"
    """M-RoPE and as many embeddings as a picture needs; or plain positions, 16 embeddings of any picture, and each row
    looks at all others; None: it sees nothing."""
    width: int = 64
    seed: int = 0
    scale: float = 0.3
    """About how large the numbers of an embedding are."""
    hears: bool = False

    @property
    def file_name(self) -> str:
        recipe = "-".join(str(getattr(self, part.name)) for part in fields(self))
        written_by = [__file__, *(str(module.__file__) for module in (gguf, random_tensors, tiny_audio))]
        digest = hashlib.sha256(b"".join(Path(file).read_bytes() for file in written_by)).hexdigest()[:12]
        return f"projector-{recipe}-{digest}.gguf"


def build_projector(projector: TinyProjector, folder: Path = MODELS_FOLDER) -> Path:
    """The file of `projector`, generated if it is not there yet."""
    path = folder / projector.file_name
    if not path.exists():
        GgufFile(_entries(projector), _tensors(projector).tensors).write(path)
    return path


def _entries(projector: TinyProjector) -> dict[str, bytes]:
    return {
        "general.architecture": text("clip"),
        "clip.use_silu": boolean(False),
        "clip.use_gelu": boolean(False),
        **(_vision_entries(projector.kind, projector.width) if projector.kind else {}),
        **(tiny_audio.audio_entries(projector.width) if projector.hears else {}),
    }


def _vision_entries(kind: str, width: int) -> dict[str, bytes]:
    sizes = {
        "image_size": _IMAGE_SIZE[kind],
        "patch_size": PATCH,
        "embedding_length": _WIDTH,
        "feed_forward_length": _HIDDEN,
        "block_count": 1,
        "projection_dim": width,
        "attention.head_count": _HEADS,
        **({"projector.scale_factor": 2} if kind == "gemma3" else {}),
    }
    return {
        "clip.has_vision_encoder": boolean(True),
        "clip.vision.projector_type": text(kind),
        "clip.vision.attention.layer_norm_epsilon": f32(1e-6),
        "clip.vision.image_mean": f32_array([0.5, 0.5, 0.5]),
        "clip.vision.image_std": f32_array([0.25, 0.25, 0.25]),
        **{f"clip.vision.{name}": u32(size) for name, size in sizes.items()},
    }


def _tensors(projector: TinyProjector) -> RandomTensors:
    made = RandomTensors(projector.seed)
    if projector.kind:
        _add_vision(made, projector.kind, projector.width, projector.scale)
    if projector.hears:
        tiny_audio.add_audio(made, projector.width, projector.scale)
    return made


def _add_vision(to: RandomTensors, kind: str, width: int, scale: float) -> None:
    _add_patches(to, kind)
    to.block("v.blk.0", _WIDTH, _HIDDEN)
    to.norm("v.post_ln", _WIDTH)
    if kind == "gemma3":
        to.put("mm.soft_emb_norm.weight", np.ones(_WIDTH, np.float32))
        to.random("mm.input_projection.weight", (_WIDTH, width), scale)
        return
    merged = 4 * _WIDTH
    to.linear("mm.0", merged, merged)
    to.linear("mm.2", width, merged, 2 * scale)


def _add_patches(to: RandomTensors, kind: str) -> None:
    to.random("v.patch_embd.weight", (_WIDTH, 3, PATCH, PATCH))
    if kind == "gemma3":
        to.put("v.patch_embd.bias", np.zeros(_WIDTH, np.float32))
        to.random("v.position_embd.weight", ((_IMAGE_SIZE[kind] // PATCH) ** 2, _WIDTH))
    else:  # a second one, of the next picture of a video
        to.random("v.patch_embd.weight.1", (_WIDTH, 3, PATCH, PATCH))
