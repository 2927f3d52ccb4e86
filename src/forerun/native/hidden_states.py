"""Hidden states of the target that an MTP head has yet to see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]

_LEAST_ROWS = 16


@dataclass(slots=True)
class _Kept:
    """States of positions [start, start + count), in buffer[offset : offset + count]."""

    start: int
    buffer: Rows
    offset: int = 0
    count: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def rows(self) -> Rows:
        return self.buffer[self.offset : self.offset + self.count]

    def append(self, rows: Rows) -> None:
        if self.offset + self.count + len(rows) > len(self.buffer):
            self._move(2 * (self.count + len(rows)))
        first = self.offset + self.count
        self.buffer[first : first + len(rows)] = rows
        self.count += len(rows)

    def drop_before(self, position: int) -> None:
        dropped = min(max(position - self.start, 0), self.count)
        self.start, self.offset, self.count = self.start + dropped, self.offset + dropped, self.count - dropped
        if len(self.buffer) > max(8 * self.count, 4 * _LEAST_ROWS):
            self._move(2 * self.count)

    def drop_from(self, position: int) -> None:
        self.count = min(self.count, max(position - self.start, 0))

    def _move(self, capacity: int) -> None:
        buffer = np.empty((max(capacity, _LEAST_ROWS), self.buffer.shape[1]), np.float32)
        buffer[: self.count] = self.rows
        self.buffer, self.offset = buffer, 0


class HiddenStates:
    """States of each sequence's latest positions, one run without gaps a sequence; at most `capacity` rows together.

        [ dropped | start .......... stop )       what was never seen, or dropped, reads as zeros

    Where there are too many, the sequences written longest ago lose theirs.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.capacity = capacity
        self._kept: dict[int, _Kept] = {}
        """In the order of the last write."""

    def write(self, sequence_id: int, position: int, rows: Rows) -> None:
        """States of consecutive positions from `position` on; what was known from there on is replaced."""
        kept = self._kept.pop(sequence_id, None)
        if kept is None or not kept.start <= position <= kept.stop:
            kept = _Kept(position, np.empty((max(len(rows), _LEAST_ROWS), self.width), np.float32))
        kept.drop_from(position)
        kept.append(rows)
        kept.drop_before(kept.stop - self.capacity)
        self._kept[sequence_id] = kept
        self._make_room()

    def _make_room(self) -> None:
        while len(self) > self.capacity:
            del self._kept[next(iter(self._kept))]

    def read(self, sequence_id: int, position: int, out: Rows) -> bool:
        """Fill `out` with the states of positions from `position` on; zeros for those that are not known.

        Returns whether any is."""
        out[:] = 0
        kept = self._kept.get(sequence_id)
        if kept is not None:
            first, stop = max(position, kept.start), min(position + len(out), kept.stop)
            if first < stop:
                out[first - position : stop - position] = kept.rows[first - kept.start : stop - kept.start]
                return True
        return False

    def forget_before(self, position: int, sequence_id: int) -> None:
        """Drop the states of positions below `position`."""
        kept = self._kept.get(sequence_id)
        if kept is not None:
            kept.drop_before(position)

    def copy(self, source_id: int, target_id: int, stop: int) -> None:
        """Let `target_id` have what is known of the source's positions below `stop`, and nothing else."""
        self.clear(target_id)
        kept = self._kept.get(source_id)
        if kept is not None and kept.start < stop:
            self.write(target_id, kept.start, kept.rows[: stop - kept.start])

    def clear(self, sequence_id: int) -> None:
        self._kept.pop(sequence_id, None)

    def __len__(self) -> int:
        """Rows kept of all sequences."""
        return sum(kept.count for kept in self._kept.values())

    def __repr__(self) -> str:
        return f"HiddenStates({len(self)} of {self.capacity} rows of {len(self._kept)} sequences)"
