"""KV cells as llama.cpp keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.core.memory import DENSE, MemoryKind
from forerun.core.step import MediaRows
from forerun.testing.model import next_digest

GARBAGE = 10**6
"""What a failed decode leaves, and what follows from cells that are gone."""
_COPY = -1
"""Copies have ids below 0."""


class FakeMemoryError(Exception):
    """What the fake memory refuses; the message says why."""


@dataclass(slots=True, eq=False)
class _Cell:
    position: int
    digest: int
    owners: int = 1


class FakeMemory:
    """KV cells of one context. Sequences hold rows of shared cells, positions consecutive.

    `kind` says where they can be cut. A state refuses; behind a sliding window cells are gone as soon as they may be,
    and a cut that would need them is accepted and makes everything after it wrong, as in llama.cpp.
    """

    def __init__(self, capacity: int, kind: MemoryKind = DENSE) -> None:
        self.capacity = capacity
        self.kind = kind
        self.used = 0
        self._first: dict[int, int] = {}
        self._sequences: dict[int, list[_Cell]] = {}
        self._ends: dict[int, int] = {}

    def next_position(self, sequence_id: int) -> int:
        """Native position that must come next: `seq_pos_max + 1`."""
        return self._ends.get(sequence_id, 0)

    def held(self, sequence_id: int) -> int:
        """Cells of a sequence."""
        return len(self._sequences.get(sequence_id, ()))

    def digest(self, sequence_id: int) -> int:
        """A hash of everything the sequence holds, in order."""
        cells = self._sequences.get(sequence_id)
        return cells[-1].digest if cells else 0

    def held_from(self) -> dict[int, int]:
        """First position that is still there, of every sequence whose sliding window has lost some."""
        return {sequence_id: first for sequence_id, first in self._first.items() if first > 0}

    def append(
        self,
        sequence_id: int,
        codes: Iterable[int],
        position: int,
        batch_from: int | None = None,
    ) -> None:
        """Evaluate one token a code, from `position` on.

        `batch_from`: where the sequence's rows in this decode begin, if not here.
        """
        codes = list(codes)
        self._append(sequence_id, codes, position, position, 0, len(codes), batch_from)
        self._ends[sequence_id] = position + len(codes)

    def append_media(self, sequence_id: int, codes: list[int], rows: MediaRows) -> None:
        """Evaluate a part of a span, given all of its codes; they share its positions."""
        extent = rows.media.native_positions
        goes_on_at = rows.position + (rows.start > 0)
        self._append(sequence_id, codes[rows.start : rows.stop], rows.position, goes_on_at, rows.start, extent)
        self._ends[sequence_id] = rows.position + (extent if rows.is_last else 1)

    def _append(
        self,
        sequence_id: int,
        codes: list[int],
        position: int,
        goes_on_at: int,
        first: int,
        extent: int,
        batch_from: int | None = None,
    ) -> None:
        """Add cells, from number `first` on of those that share `extent` positions."""
        if goes_on_at != self.next_position(sequence_id):
            raise FakeMemoryError(
                f"sequence {sequence_id} goes on at position {self.next_position(sequence_id)}, not at {position}"
            )
        if self.used + len(codes) > self.capacity:
            raise FakeMemoryError(f"{len(codes)} cells wanted, {self.capacity - self.used} of {self.capacity} free")
        if self.kind.window:  # masked for the first new row, so free for others
            begin = position if batch_from is None else batch_from
            self._first[sequence_id] = max(self._first.get(sequence_id, 0), begin - self.kind.window + 1)
        cells = self._sequences.setdefault(sequence_id, [])
        digest = self.digest(sequence_id)
        for index, code in enumerate(codes, first):
            at = position + min(index, extent - 1)
            digest = next_digest(digest, code, at)
            cells.append(_Cell(at, digest))
        self.used += len(codes)

    def fork(self, source_id: int, target_id: int, position: int) -> None:
        """llama_memory_seq_cp of [0, position) into an empty sequence: metadata only."""
        if self._sequences.get(target_id):
            raise FakeMemoryError(f"fork into sequence {target_id}, which is not empty")
        if self.kind.has_state and 0 < position < self.next_position(source_id):
            raise FakeMemoryError(f"sequence {source_id} cannot be forked at {position}")
        shared = [cell for cell in self._sequences.get(source_id, ()) if cell.position < position]
        for cell in shared:
            cell.owners += 1
        self._sequences[target_id] = shared
        self._ends[target_id] = min(position, self.next_position(source_id))
        self._first[target_id] = self._first.get(source_id, 0)
        if position < self.next_position(source_id):
            self._spoil_if_unsound(target_id, position)

    def truncate(self, sequence_id: int, position: int) -> None:
        """llama_memory_seq_rm of [position, end)."""
        cells = self._sequences.get(sequence_id, [])
        if not cells or self.next_position(sequence_id) <= position:
            return
        if position and self.kind.has_state:
            raise FakeMemoryError(f"sequence {sequence_id} cannot be truncated")
        while cells and cells[-1].position >= position:
            self._drop(cells.pop())
        self._ends[sequence_id] = position
        self._spoil_if_unsound(sequence_id, position)

    def is_sound(self, sequence_id: int, position: int) -> bool:
        """Whether all cells are there that a token at `position` looks at."""
        return not self.kind.window or self._first.get(sequence_id, 0) <= max(0, position - self.kind.window + 1)

    def export(self, sequence_id: int, start: int, stop: int) -> NDArray[np.int64]:
        """The cells at positions [start, stop): where from, then position, digest and the digest before, of each.

        A state belongs to the end of a sequence: with one, `stop` must be there.
        """
        cells = self._sequences.get(sequence_id, [])
        if self.kind.has_state and stop != self.next_position(sequence_id):
            raise FakeMemoryError(f"the state of sequence {sequence_id} at {stop} is not known any more")
        if stop > self.next_position(sequence_id):
            raise FakeMemoryError(f"sequence {sequence_id} ends at {self.next_position(sequence_id)}, before {stop}")
        before = [0, *(cell.digest for cell in cells)]
        rows = [(c.position, c.digest, before[i]) for i, c in enumerate(cells) if start <= c.position < stop]
        first = max(self._first.get(sequence_id, 0), start)
        return np.array([(start, stop, first), *rows], np.int64)

    def restore(self, sequence_id: int, exported: NDArray[np.int64], start: int, stop: int) -> None:
        """Give a sequence that holds what lies before `start` the exported cells up to `stop`."""
        begin, end, first = exported[0].tolist()
        if self.next_position(sequence_id) != start or not begin <= start <= stop <= end:
            raise FakeMemoryError(f"sequence {sequence_id} cannot be given [{start}, {stop}) of [{begin}, {end})")
        if self.kind.has_state and (start, stop) != (begin, end):
            raise FakeMemoryError(f"a state cannot be cut: [{start}, {stop}) of [{begin}, {end})")
        rows = [row for row in exported[1:].tolist() if start <= row[0] < stop]
        if self.used + len(rows) > self.capacity:
            raise FakeMemoryError(f"{len(rows)} cells wanted, {self.capacity - self.used} of {self.capacity} free")
        follows = not rows or rows[0][2] == self.digest(sequence_id)
        cells = self._sequences.setdefault(sequence_id, [])
        cells.extend(_Cell(position, digest if follows else GARBAGE) for position, digest, _ in rows)
        self._ends[sequence_id] = stop
        self.used += len(rows)
        if self.kind.window and first > begin:
            self._first[sequence_id] = max(self._first.get(sequence_id, 0), min(first, stop))

    def _spoil_if_unsound(self, sequence_id: int, position: int) -> None:
        """Cells that the next token looks at are gone: whatever is computed from here on is wrong."""
        if not position:
            self._first.pop(sequence_id, None)
        elif not self.is_sound(sequence_id, position):
            cells = self._sequences[sequence_id]
            spoilt = cells.pop()
            self._drop(spoilt)
            cells.append(_Cell(spoilt.position, GARBAGE))
            self.used += 1

    def clear(self, sequence_id: int) -> None:
        self.truncate(sequence_id, 0)

    def _drop(self, cell: _Cell) -> None:
        cell.owners -= 1
        if not cell.owners:
            self.used -= 1

    def __repr__(self) -> str:
        held = {key: len(cells) for key, cells in self._sequences.items() if cells}
        return f"FakeMemory({self.used} of {self.capacity} cells: {held})"


def remember(memory: FakeMemory, sequence_id: int) -> None:
    """Keep a copy of a sequence where its memory cannot be cut."""
    if memory.kind.has_state:
        memory.clear(_COPY - sequence_id)
        memory.fork(sequence_id, _COPY - sequence_id, memory.next_position(sequence_id))


def take_back(memory: FakeMemory, sequence_id: int, position: int) -> bool:
    """Drop what lies from `position` on. True where that meant going back to the copy, which holds less."""
    copy = _COPY - sequence_id
    goes_back = memory.kind.has_state and memory.next_position(sequence_id) > position
    if goes_back:
        memory.clear(sequence_id)
        memory.fork(copy, sequence_id, memory.next_position(copy))
    elif memory.kind.window and not memory.is_sound(sequence_id, position):
        memory.clear(sequence_id)
    else:
        memory.truncate(sequence_id, position)
    if memory.kind.has_state:
        memory.clear(copy)
    return goes_back
