"""The half of a tiny projector that hears: Ultravox's, which is Whisper's encoder and a few rows more.

It hears half a minute at a time, silence where a recording is shorter, and makes 15 embeddings of each.
"""

from __future__ import annotations

import numpy as np

from tests.support.gguf_file import boolean, f32, text, u32
from tests.support.random_tensors import F16, RandomTensors

KIND = "ultravox"
RATE = 16_000
SECONDS = 30
"""Of a chunk."""
TOKENS = 15
"""Of a chunk."""
_MEL, _WIDTH, _HIDDEN, _HEADS = 80, 32, 64, 2
_FRAMES = 1500
"""Of a chunk, once they were halved."""
_STACKED = _FRAMES // TOKENS


def audio_entries(width: int) -> dict[str, bytes]:
    """`width`: of the text model."""
    sizes = {
        "num_mel_bins": _MEL,
        "embedding_length": _WIDTH,
        "feed_forward_length": _HIDDEN,
        "block_count": 1,
        "projection_dim": width,
        "attention.head_count": _HEADS,
        "projector.stack_factor": _STACKED,
    }
    return {
        "clip.has_audio_encoder": boolean(True),
        "clip.audio.projector_type": text(KIND),
        "clip.audio.attention.layer_norm_epsilon": f32(1e-5),
        **{f"clip.audio.{name}": u32(size) for name, size in sizes.items()},
    }


def add_audio(to: RandomTensors, width: int, scale: float) -> None:
    """`scale`: about how large the numbers of an embedding are."""
    for number, channels in ((1, _MEL), (2, _WIDTH)):
        to.random(f"a.conv1d.{number}.weight", (_WIDTH, channels, 3), 2.0, F16)
        to.put(f"a.conv1d.{number}.bias", np.zeros((_WIDTH, 1), np.float32))
    to.random("a.position_embd.weight", (_FRAMES, _WIDTH))
    to.block("a.blk.0", _WIDTH, _HIDDEN, has_key_bias=False)
    to.norm("a.post_ln", _WIDTH)
    to.put("mm.a.norm_pre.weight", np.ones(_STACKED * _WIDTH, np.float32))
    to.random("mm.a.mlp.1.weight", (2 * _HIDDEN, _STACKED * _WIDTH))
    to.put("mm.a.norm_mid.weight", np.ones(_HIDDEN, np.float32))
    to.random("mm.a.mlp.2.weight", (width, _HIDDEN), scale)
