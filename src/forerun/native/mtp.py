"""MTP (NextN) heads: the target's own extra layer drafts, from the hidden states of the rows just decoded.

What a head computes, with h the target's hidden state behind its final norm and x the tokens:

    row at position p:   x[p], h[p - 1]   ->   likeliest x[p + 1], and the head's own guess of h[p]

So rows of known text take the target's states, and proposals, one after another, the head's own. The head has a KV
memory for its layer, in a context of its own on the same model (decision 8).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.step import DraftFill, DraftRequest
from forerun.native.batch import Batch
from forerun.native.context import LlamaContext
from forerun.native.drafter import LlamaDrafter, Run
from forerun.native.hidden_states import HiddenStates
from forerun.native.nextn import hidden_states, nextn_width, output_hidden_states

STATE_BYTES = 256 * 2**20
"""Hidden states kept for heads that lag behind their target, at most."""


class MtpDrafter(LlamaDrafter):
    """A LlamaDrafter on an MTP context of the target's own model.

    It watches the target's decodes and keeps the hidden states of rows that the head has not seen yet, so prompts are
    run through the head when the scheduler asks for it, as with any draft model. A state that is not known (its rows
    were dropped, or the head's memory was) reads as zeros, as before the first token: a worse guess, no wrong answer.

    Proposals leave their rows in the head's memory with guessed states; `settle` drops them all, and the accepted ones
    are computed again from the target's states with the next pending token, in the same decode.
    """

    name = "mtp"

    def __init__(self, context: LlamaContext, target: LlamaContext) -> None:
        """`context`: an MTP context (`ContextParams.is_mtp`). Raises NextnUnavailableError."""
        super().__init__(context)
        self._target = target
        self._width = nextn_width(context.model.handle)
        self.tail_bytes = 4 * self._width
        self._states = HiddenStates(self._width, max(STATE_BYTES // (4 * self._width), target.n_batch))
        output_hidden_states(target.handle)
        output_hidden_states(context.handle)
        target.after_decode = self._watch

    def _watch(self, batch: Batch) -> None:
        """Keep what a decode of the target gave; rejected rows are overwritten by those that take their place."""
        states = hidden_states(self._target.handle, batch.rows, self._width)
        for sequence_id, position, rows in batch.runs():
            self._states.write(sequence_id, position, states[rows])

    def fill(self, fills: Sequence[DraftFill]) -> None:
        super().fill(fills)
        for fill in fills:
            self._forget_seen(fill.sequence_id)

    def settle(self, request: DraftRequest, accepted: int) -> int:  # noqa: ARG002 (none is kept)
        """Drop every proposal; returns how many tokens the head's memory then holds."""
        held = super().settle(request, 0)
        self._forget_seen(request.sequence_id)
        return held

    def _forget_seen(self, sequence_id: int) -> None:
        """The next row still needs the state before it."""
        self._states.forget_before(self.held(sequence_id) - 1, sequence_id)

    def _add_rows(self, run: Run, start: int, stop: int, *, last_output: bool) -> None:
        first = self._batch.rows
        super()._add_rows(run, start, stop, last_output=last_output)
        self._states.read(run.sequence_id, run.position + start - 1, self._batch.states[first : self._batch.rows])

    def _flush(self, ended: list[Run]) -> None:
        """Keep the head's guesses of hidden states: what it proposes next goes on from them."""
        asked, rows, outputs = list(ended), self._batch.rows, self._batch.output_rows()
        super()._flush(ended)
        if asked:
            guesses = hidden_states(self.context.handle, rows, self._width)
            for run, row in zip(asked, outputs, strict=True):
                self._states.write(run.sequence_id, run.position + len(run.tokens) - 1, guesses[row : row + 1])

    def clear(self, sequence_id: int) -> None:
        super().clear(sequence_id)
        self._states.clear(sequence_id)

    def fork(self, source_id: int, target_id: int, position: int) -> None:
        super().fork(source_id, target_id, position)
        self._states.copy(source_id, target_id, position)

    def tail(self, sequence_id: int, position: int) -> NDArray[np.uint8]:
        """The state before the next row. Others that a head lags behind with are not stored: they read as zeros."""
        state = np.empty((1, self._width), np.float32)
        is_known = self._states.read(sequence_id, position - 1, state)
        return state.view(np.uint8)[0] if is_known else np.empty(0, np.uint8)

    def restore_tail(self, sequence_id: int, position: int, tail: NDArray[np.uint8]) -> None:
        if tail.size == self.tail_bytes:
            state = np.frombuffer(tail.tobytes(), np.float32)
            self._states.write(sequence_id, position - 1, state[np.newaxis])

    def close(self) -> None:
        """Free the head's context; the target is no longer watched."""
        self._target.after_decode = None
        super().close()
