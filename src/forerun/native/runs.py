"""Runs of one context's memory as bytes: read out of a sequence, and put back behind what another one holds.

A run goes through a scratch id that is empty otherwise. Sharing cells with it is metadata only, so only the run's own
bytes are copied:

    out   sequence [ ....... start #### stop ....... ] ── share ──► scratch [ start #### stop ] ──► bytes
    in    bytes ──► scratch [ start #### stop ] ── share ──► sequence [ ....... start #### stop ]

llama.cpp writes of a sliding window's cells only those that the sequence's last position looks at. So runs are split
into pieces that lie within one window, and a stored run can be cut as the memory itself can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from forerun.native.context import LlamaContext
from forerun.native.packing import Bytes

Run = tuple[int, int]
"""Positions [start, stop) of one memory."""


class Runs:
    """Reads and writes runs of a context's sequences through its last id, which nobody else uses."""

    def __init__(self, context: LlamaContext) -> None:
        self.context = context
        self._scratch = context.params.n_seq_max - 1

    def split(self, run: Run) -> list[Run]:
        """The pieces that are stored one by one. They end at multiples of the window: llama.cpp's chunked attention
        looks back to these; for the others any place would do. A state is not cut, so its window need not be whole."""
        start, stop = run
        window = 0 if self.context.memory.has_state else self.context.memory.window
        cuts = range((start // window + 1) * window, stop, window) if window else ()
        return list(pairwise([start, *cuts, stop]))

    def end(self, sequence_id: int) -> int:
        """Where what a sequence holds ends, also if a sliding window has lost its last cells."""
        return max(self.context.pos_max(sequence_id) + 1, self.context.gap_until(sequence_id))

    def holds(self, sequence_id: int, run: Run) -> bool:
        """Whether a run can be read: with a state, the sequence ends where the run does. Empty runs cannot."""
        if run[0] >= run[1]:
            return False
        if self.context.ends_at(sequence_id, run[1]):
            return self.context.pos_max(sequence_id) >= run[0]
        return not self.context.memory.has_state and self.end(sequence_id) >= run[1]

    def ends_at(self, sequence_id: int, position: int) -> bool:
        """Whether what a sequence holds goes on at a position."""
        return self.end(sequence_id) == position or self.context.ends_at(sequence_id, position)

    def size(self, sequence_id: int, run: Run) -> int:
        """Bytes of a run's state."""
        with self._shared(sequence_id, run):
            return self.context.state_size(self._scratch)

    def read(self, sequence_id: int, run: Run, out: Bytes) -> int:
        """Write a run's state to `out`, which is of its size. Raises NativeStepError.

        Returns the first position from which all cells are there.
        """
        with self._shared(sequence_id, run):
            self.context.get_sequence_state(self._scratch, out)
            return self._whole_from(run)

    def write(self, sequence_id: int, run: Run, state: Bytes, part: Run) -> None:
        """Give a sequence that part of a stored run. Raises NativeStepError, and the sequence is as it was before."""
        start, stop = part
        try:
            self.context.set_sequence_state(self._scratch, state)
            self.context.copy_sequence(self._scratch, sequence_id, stop, start)
            whole_from = self._whole_from(run)
        finally:
            self.context.clear_sequence(self._scratch)
        if whole_from > start:
            self.context.note_gap(sequence_id, min(whole_from, stop))

    def _whole_from(self, run: Run) -> int:
        """Of the run that the scratch id holds."""
        if not self.context.memory.window or self.context.memory.has_state:
            return run[0]
        first = self.context.whole_from(self._scratch)
        return min(first, run[1]) if first >= 0 else run[1]

    @contextmanager
    def _shared(self, sequence_id: int, run: Run) -> Iterator[None]:
        """Let the scratch id hold a run for a moment."""
        start, stop = run
        self.context.copy_sequence(sequence_id, self._scratch, stop, start)
        try:
            yield
        finally:
            self.context.clear_sequence(self._scratch)

    def __repr__(self) -> str:
        return f"Runs({self.context!r}, scratch id {self._scratch})"
