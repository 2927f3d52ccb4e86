"""Rows of embeddings for one native decode."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp

from forerun.core.step import MediaRows
from forerun.native.encoded import Encoded


class MediaBatch:
    """A llama_batch over a part of an encoded span. It borrows the span's embeddings.

    [ embeddings | positions, section by section | sequence | wants logits ]   one row a logical token
    """

    def __init__(self, rows: MediaRows, encoded: Encoded, start: int, stop: int) -> None:
        """Rows [start, stop) of the span; the last one of `rows` asks for logits where something is sampled."""
        self.rows = stop - start
        self.outputs = int(rows.sampling is not None and stop == rows.stop)
        count = self.rows
        self._embeddings = np.ascontiguousarray(encoded.embeddings[start:stop])
        self._positions = np.ascontiguousarray(encoded.geometry.at(rows.position, slice(start, stop)))
        self._sequence = np.array([rows.sequence_id], np.int32)
        self._pointers = np.full(count, self._sequence.ctypes.data, np.uintp)
        self._ones = np.ones(count, np.int32)
        self._logits = np.zeros(count, np.int8)
        self._logits[-1] = self.outputs
        self.native: Any = llama_cpp.llama_batch(
            n_tokens=count,
            token=None,
            embd=_pointer(self._embeddings, ctypes.c_float),
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._ones, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._logits, ctypes.c_int8),
        )

    def __repr__(self) -> str:
        return f"MediaBatch({self.rows} rows)"


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
