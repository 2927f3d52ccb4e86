"""Who holds which KV cells: a cell counts once however many sequences share it.

Sequences that share a prefix share spans. A span is a run of cells with a parent span before it; a sequence points at
its last span. Forking splits a span at most once, and nobody's pointer has to move:

    before   A -> [0 ............ 10)
    fork A at 6 into B
    after    A -> [6 ... 10) -> [0 ... 6)
             B -> --------------^
"""

from __future__ import annotations


class _Span:
    __slots__ = ("length", "parent", "references")

    def __init__(self, parent: _Span | None, length: int, references: int) -> None:
        self.parent = parent
        self.length = length
        self.references = references
        """Sequences that end here plus spans that follow."""


class CellLedger:
    """Cells held by each sequence of one context. `capacity` None means without bound."""

    __slots__ = ("_ends", "_held", "capacity", "used")

    def __init__(self, sequences: int, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.used = 0
        self._held = [0] * sequences
        self._ends: list[_Span | None] = [None] * sequences

    @property
    def free(self) -> int:
        """Cells nobody holds; a very large number without bound."""
        return 2**62 if self.capacity is None else self.capacity - self.used

    def held(self, sequence_id: int) -> int:
        """Tokens in a sequence's memory."""
        return self._held[sequence_id]

    def append(self, sequence_id: int, count: int) -> None:
        """A sequence computed `count` further tokens."""
        if count <= 0:
            return
        end = self._ends[sequence_id]
        if end is not None and end.references == 1:
            end.length += count
        else:
            self._ends[sequence_id] = _Span(end, count, 1)
        self._held[sequence_id] += count
        self.used += count

    def fork(self, source_id: int, target_id: int, count: int) -> None:
        """The empty sequence `target_id` shares the first `count` cells of `source_id`."""
        if count:
            self._ends[target_id] = self._shared_span(source_id, count)
        self._held[target_id] = count

    def truncate(self, sequence_id: int, count: int) -> None:
        """Keep a sequence's first `count` cells."""
        held, end = self._held[sequence_id], self._ends[sequence_id]
        if count >= held or end is None:
            return
        if end.references == 1 and held - end.length < count:
            end.length -= held - count
            self.used -= held - count
        else:
            self._ends[sequence_id] = self._shared_span(sequence_id, count) if count else None
            self._release(end)
        self._held[sequence_id] = count

    def clear(self, sequence_id: int) -> None:
        self.truncate(sequence_id, 0)

    def resize(self, sequence_id: int, count: int) -> None:
        """Append or truncate so that a sequence holds `count`."""
        self.append(sequence_id, count - self._held[sequence_id])
        self.truncate(sequence_id, count)

    def _shared_span(self, sequence_id: int, count: int) -> _Span:
        """The span that ends after a sequence's first `count` (> 0) cells, with one reference more."""
        span = self._ends[sequence_id]
        assert span is not None
        start = self._held[sequence_id] - span.length
        while start >= count:
            span = span.parent
            assert span is not None
            start -= span.length
        if count < start + span.length:
            upper = _Span(span.parent, count - start, 1)
            span.parent, span.length = upper, span.length - upper.length
            span = upper
        span.references += 1
        return span

    def _release(self, span: _Span | None) -> None:
        while span is not None:
            span.references -= 1
            if span.references:
                return
            self.used -= span.length
            span = span.parent

    def held_together(self, sequence_ids: list[int]) -> int:
        """Cells that at least one of the sequences holds, each counted once."""
        seen: set[int] = set()
        total = 0
        for sequence_id in sequence_ids:
            span = self._ends[sequence_id]
            while span is not None and id(span) not in seen:
                seen.add(id(span))
                total += span.length
                span = span.parent
        return total

    def check_integrity(self) -> None:
        """Raise AssertionError where the counts contradict each other."""
        assert self.held_together(list(range(len(self._held)))) == self.used
        assert self.capacity is None or self.used <= self.capacity, f"{self.used} of {self.capacity} cells used"
        for held, end in zip(self._held, self._ends, strict=True):
            length = 0
            while end is not None:
                length += end.length
                end = end.parent
            assert held == length

    def __repr__(self) -> str:
        return f"CellLedger({self.used} of {self.capacity if self.capacity is not None else 'unbounded'} used)"
