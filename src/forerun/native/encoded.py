"""What a media span is encoded to: a row of numbers a logical token, and where the rows lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Embeddings: TypeAlias = NDArray[np.float32]
_HEAD: Final = 4
"""Numbers before what is remembered of a span: dimensions, rows, width, and whether it is causal."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the rows of a span lie in a model's positions.

    Shape (dimensions, rows): one dimension, or M-RoPE's four (time, height, width, none). A row is at
    `offsets + start * moves` where its span starts at `start`.
    """

    offsets: NDArray[np.int32]
    moves: NDArray[np.int32]

    def at(self, start: int, rows: slice) -> NDArray[np.int32]:
        """Positions of some rows of a span that starts at `start`."""
        positions: NDArray[np.int32] = self.offsets[:, rows] + np.int32(start) * self.moves[:, rows]
        return positions


@dataclass(frozen=True, slots=True)
class Encoded:
    """A span, ready to be evaluated."""

    embeddings: Embeddings
    geometry: Geometry
    is_causal: bool

    def to_bytes(self) -> bytes:
        """For a store on this machine."""
        rows, width = self.embeddings.shape
        head = np.array([self.geometry.offsets.shape[0], rows, width, self.is_causal], np.int32)
        parts = (head, self.geometry.offsets, self.geometry.moves, self.embeddings)
        return b"".join(part.tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` gave. Raises ValueError for anything else."""
        dimensions, rows, width, is_causal = np.frombuffer(data, np.int32, _HEAD).tolist()
        numbers = np.frombuffer(data, np.int32, 2 * dimensions * rows, 4 * _HEAD)
        offsets, moves = numbers.reshape(2, dimensions, rows)
        embeddings = np.frombuffer(data, np.float32, rows * width, 4 * (_HEAD + numbers.size))
        return cls(embeddings.reshape(rows, width), Geometry(offsets, moves), bool(is_causal))
