"""Taking rows back where a memory cannot be cut (recurrent and hybrid models)."""

from __future__ import annotations

from forerun.native.context import LlamaContext


class Rollback:
    """Copies of sequences as they were, under ids of their own from `first_id` on: `ids` at a time.

    A copy shares the memory of its source until one of them goes on, so it costs next to nothing to make, and on a GPU
    nothing crosses the bus. Empty between steps.
    """

    def __init__(self, context: LlamaContext, first_id: int, ids: int) -> None:
        if first_id + ids > context.params.n_seq_max:
            raise ValueError(f"{first_id + ids} sequence ids are needed, the context has {context.params.n_seq_max}")
        self._context = context
        self._free = list(range(first_id, first_id + ids))
        self._copies: dict[int, int] = {}

    def remember(self, sequence_id: int) -> None:
        """Keep what a sequence holds now. Replaces what was remembered of it."""
        self.forget(sequence_id)
        copy = self._free.pop()
        self._context.copy_sequence(sequence_id, copy)
        self._copies[sequence_id] = copy

    def go_back(self, sequence_id: int) -> None:
        """Make a sequence what was remembered of it."""
        self._context.clear_sequence(sequence_id)
        self._context.copy_sequence(self._copies[sequence_id], sequence_id)
        self.forget(sequence_id)

    def forget(self, sequence_id: int) -> None:
        """Drop what was remembered of a sequence, if anything."""
        copy = self._copies.pop(sequence_id, None)
        if copy is not None:
            self._context.clear_sequence(copy)
            self._free.append(copy)

    def forget_all(self) -> None:
        for sequence_id in list(self._copies):
            self.forget(sequence_id)

    def __repr__(self) -> str:
        return f"Rollback({len(self._copies)} copies, {len(self._free)} ids free)"
