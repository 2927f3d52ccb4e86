"""Weights of generated projectors: random, reproducible, of a size that keeps what they compute in bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.support.gguf_file import Tensor

F32, F16 = 0, 1
"""Types of tensors in GGUF files."""


class RandomTensors:
    """Tensors in the order they were asked for; the same ones from the same seed."""

    def __init__(self, seed: int) -> None:
        self.tensors: list[Tensor] = []
        self._random = np.random.default_rng(seed)

    def block(self, name: str, width: int, hidden: int, *, has_key_bias: bool = True) -> None:
        """A layer of a transformer without gates."""
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            if part == "attn_k" and not has_key_bias:
                self.random(f"{name}.{part}.weight", (width, width))
            else:
                self.linear(f"{name}.{part}", width, width)
        self.linear(f"{name}.ffn_up", hidden, width)
        self.linear(f"{name}.ffn_down", width, hidden)
        self.norm(f"{name}.ln1", width)
        self.norm(f"{name}.ln2", width)

    def norm(self, name: str, width: int) -> None:
        self.put(f"{name}.weight", np.ones(width, np.float32))
        self.put(f"{name}.bias", np.zeros(width, np.float32))

    def linear(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        self.random(f"{name}.weight", (rows, columns), gain)
        self.put(f"{name}.bias", np.zeros(rows, np.float32))

    def random(self, name: str, shape: tuple[int, ...], gain: float = 1.0, kind: int = F32) -> None:
        """Outputs about `gain` times as large as inputs."""
        inputs = int(np.prod(shape[1:]))
        self.put(name, self._random.standard_normal(shape, np.float32) * np.float32(gain / np.sqrt(inputs)), kind)

    def put(self, name: str, values: NDArray[np.float32], kind: int = F32) -> None:
        stored = values.astype(np.float16 if kind == F16 else np.float32)
        self.tensors.append(Tensor(name, tuple(reversed(values.shape)), kind, stored.tobytes()))
