"""What kind of memory a model has: where what a sequence holds can be cut, so that the front part is used again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """Dense by default: every token's keys and values are kept, and any tail can be dropped.

    A sliding window may have lost cells that a cut would need; a recurrent state (hybrid models have one beside their
    keys and values) is known at its end alone.
    """

    window: int = 0
    """Positions that some layers look back at; 0 without a window."""
    has_state: bool = False
    """A state that every token changes: it cannot be cut, only dropped or copied whole."""

    @property
    def is_dense(self) -> bool:
        return not (self.window or self.has_state)

    def can_cut(self, position: int, *, held: int, held_from: int = 0) -> bool:
        """Whether a sequence that holds the positions [held_from, held) can go on from `position`.

        With a window the positions before it must all be there that the next token looks at: those less than `window`
        before it (llama.cpp, llama_hparams::is_masked_swa).
        """
        if position in (0, held):
            return True
        if self.has_state:
            return False
        return not self.window or held_from <= max(0, position - self.window + 1)


DENSE = MemoryKind()
