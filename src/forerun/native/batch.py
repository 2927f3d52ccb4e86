"""Rows for one native decode, filled through numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp

from forerun.core.prompt import Tokens


class Batch:
    """A llama_batch over arrays that numpy owns. Rows keep the order they are added in; so do the logits.

    [ token | position | sequence | wants logits ]   one row a token
    0                                        rows           capacity
    """

    def __init__(self, capacity: int, state_width: int = 0) -> None:
        """`state_width`: numbers of a hidden state that each row takes beside its token; 0 for plain models."""
        self.capacity = capacity
        self.states = np.zeros((capacity, state_width), np.float32)
        """Hidden states beside the tokens, shape (capacity, state_width). Rows keep what was written last."""
        self.rows = 0
        self.outputs = 0
        """How many rows ask for logits."""
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        self._one_each = np.ones(capacity, np.int32)
        self._count_up = np.arange(capacity, dtype=np.int32)
        # Row i names its sequences through a pointer to an array, here always to element i of _sequences.
        self._sequence_pointers = self._sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self.native: Any = llama_cpp.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32),
            embd=_pointer(self.states, ctypes.c_float) if state_width else None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._one_each, ctypes.c_int32),
            seq_id=_pointer(self._sequence_pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._logits, ctypes.c_int8),
        )
        """The llama_batch; it borrows this object's arrays."""

    @property
    def room(self) -> int:
        return self.capacity - self.rows

    def clear(self) -> None:
        self.rows = self.outputs = self.native.n_tokens = 0

    def add_row(self, token: int, position: int, sequence_id: int) -> None:
        """One row that asks for logits. Raises IndexError where the batch is full."""
        row = self.rows
        self._tokens[row] = token
        self._positions[row] = position
        self._sequences[row] = sequence_id
        self._logits[row] = 1
        self.outputs += 1
        self.rows = self.native.n_tokens = row + 1

    def add_run(self, tokens: Tokens | Sequence[int], position: int, sequence_id: int, *, last_output: bool) -> None:
        """Rows at consecutive positions; the last one asks for logits where `last_output`.

        Raises ValueError where they do not fit.
        """
        start, stop = self.rows, self.rows + len(tokens)
        if stop > self.capacity:
            raise ValueError(f"{stop} rows do not fit a batch of {self.capacity}")
        self._tokens[start:stop] = tokens
        np.add(self._count_up[: stop - start], position, out=self._positions[start:stop])
        self._sequences[start:stop] = sequence_id
        self._logits[start:stop] = 0
        if last_output and stop > start:
            self._logits[stop - 1] = 1
            self.outputs += 1
        self.rows = self.native.n_tokens = stop

    def want_all(self) -> None:
        """All rows give something out: embeddings take every token into account."""
        self._logits[: self.rows] = 1
        self.outputs = self.rows

    def output_rows(self) -> list[int]:
        """The rows that ask for logits."""
        rows: list[int] = np.flatnonzero(self._logits[: self.rows]).tolist()
        return rows

    def runs(self) -> Iterator[tuple[int, int, slice]]:
        """(sequence id, first position, rows) of every stretch of one sequence at consecutive positions."""
        sequences, positions = self._sequences[: self.rows], self._positions[: self.rows]
        is_new = (np.diff(sequences) != 0) | (np.diff(positions) != 1)
        starts = [0, *(np.flatnonzero(is_new) + 1).tolist()] if self.rows else []
        for start, stop in zip(starts, [*starts[1:], self.rows], strict=True):
            yield int(sequences[start]), int(positions[start]), slice(start, stop)

    def __repr__(self) -> str:
        return f"Batch({self.rows} of {self.capacity} rows, {self.outputs} with logits)"


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
