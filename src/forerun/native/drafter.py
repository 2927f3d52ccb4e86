"""A draft model: it runs ahead of the target, all sequences together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.core.prompt import Tokens
from forerun.core.sampling import TokenDistribution, draft_token
from forerun.core.step import DraftFill, DraftRequest, FailureKind, Proposal
from forerun.native.context import LlamaContext, NativeStepError
from forerun.native.rollback import Rollback

_log = logging.getLogger("forerun.native")


@dataclass(slots=True)
class Run:
    """Rows for one sequence at consecutive positions. Where a draft asks, they choose the token that comes next."""

    sequence_id: int
    tokens: Tokens | Sequence[int]
    position: int
    asks: _Draft | None = None


@dataclass(slots=True)
class _Draft:
    """One request while it is drafted. `run` is what is fed next."""

    request: DraftRequest
    run: Run
    proposals: list[int] = field(default_factory=list)
    drawn_from: list[TokenDistribution] = field(default_factory=list)

    def choose(self, logits: NDArray[np.float32]) -> None:
        """Add the token after the last row fed, given its logits."""
        sampling = self.request.sampling
        if sampling is None:
            self.proposals.append(int(logits.argmax()))
            return
        token, distribution = draft_token(logits, sampling, self.proposals)
        self.proposals.append(token)
        if distribution is not None and self.request.wants_distributions:
            self.drawn_from.append(distribution)


class LlamaDrafter:
    """Implements core.step.Drafter with a draft model's context, which it owns. Used by the runner's thread.

    The draft's memory holds a dense row of text tokens for each sequence id, the same ids as the target's:

        [ tokens of the request ........ pending | proposals but the last ]
        0                   held                  held after `propose`

    Nothing a draft model does can fail a step: where its memory is full, or a decode fails, there are fewer proposals.
    The native memory itself is the record of what is held. Where it cannot be cut, `rollback` remembers what a sequence
    held before its proposals; without one a rejected draft clears the sequence.

    `target_vocabulary`: how many ids the target knows, where that may be another number: of two vocabularies that
    differ in padding only, the shared ids are drafted and read, and text with others is left to the target.
    """

    name = "draft"

    def __init__(
        self, context: LlamaContext, target_vocabulary: int | None = None, rollback: Rollback | None = None
    ) -> None:
        self.context = context
        self._rollback = rollback
        self.rows_evaluated = 0
        """Rows the draft model has computed so far."""
        self._batch = context.new_batch()
        known = context.model.vocabulary.size
        self._shared_ids = known if target_vocabulary is None else min(known, target_vocabulary)
        self._end_tokens = context.model.vocabulary.end_tokens
        self._faults: dict[int, None] = {}
        """Sequences for which drafting failed since it was last asked."""

    # --- running ahead ---

    def fill(self, fills: Sequence[DraftFill]) -> None:
        """Run text through the draft model; what does not fit is missing, and `held` tells."""
        if self._rollback is not None:
            self._rollback.forget_all()  # a step that failed left its own
        runs = [
            Run(fill.sequence_id, fill.tokens, fill.position)
            for fill in fills
            if self.held(fill.sequence_id) == fill.position and self._knows(fill.tokens)
        ]
        self._feed(runs)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Continuations, chosen as the target will choose: up to `limit` tokens for each request, fewer at the end of a
        turn or without room.
        """
        drafts = [_started(request) for request in requests]
        live = [draft for draft in drafts if self._is_ready(draft.request)]
        if self._rollback is not None:
            self._rollback.forget_all()  # a step that failed left its own
        while live:
            self._feed([draft.run for draft in live])
            live = [draft for draft in live if self._advance(draft)]
        return [Proposal(tuple(draft.proposals), drawn_from=tuple(draft.drawn_from)) for draft in drafts]

    def settle(self, request: DraftRequest, accepted: int) -> int:
        """Keep of a request's draft what the target confirmed: its tokens and `accepted` proposals.

        Returns how many tokens the draft's memory then holds; without proposals where it cannot be cut among them.
        """
        keep = request.tokens.size + accepted
        if self.held(request.sequence_id) > keep:
            if self._rollback is not None:
                self._rollback.go_back(request.sequence_id)
            else:
                self.truncate(request.sequence_id, keep)
        if self._rollback is not None:
            self._rollback.forget(request.sequence_id)
        return self.held(request.sequence_id)

    def _is_ready(self, request: DraftRequest) -> bool:
        """Whether the memory holds what the request says; where it holds more, the rest is cut."""
        held = self.held(request.sequence_id)
        if held > request.held:
            self.truncate(request.sequence_id, request.held)
            held = self.held(request.sequence_id)
        unseen = request.tokens[request.held :]
        return request.limit > 0 and held == request.held and self._knows(unseen)

    def _knows(self, tokens: Tokens) -> bool:
        """Whether there are tokens, and all are text (media is negative) in shared ids."""
        return tokens.size > 0 and int(tokens.min()) >= 0 and int(tokens.max()) < self._shared_ids

    def _advance(self, draft: _Draft) -> bool:
        """Feed the token that the last run chose; False where it chose none, or the draft ends with it."""
        position = draft.run.position + len(draft.run.tokens)
        count = position - draft.request.tokens.size + 1
        if len(draft.proposals) < count or count >= draft.request.limit or draft.proposals[-1] in self._end_tokens:
            return False
        if self._rollback is not None and count == 1:
            self._rollback.remember(draft.request.sequence_id)
        draft.run = Run(draft.request.sequence_id, draft.proposals[-1:], position, draft)
        return True

    # --- evaluation ---

    def _feed(self, runs: Sequence[Run]) -> None:
        """Evaluate runs in as few decodes as n_batch allows. After a failed decode the rest is left out."""
        self._batch.clear()
        ended: list[Run] = []
        try:
            for run in runs:
                self._feed_run(run, ended)
            self._flush(ended)
        except NativeStepError as error:
            _log.info("draft model: %s; going on with fewer proposals", error)
            if error.kind is FailureKind.FAILED:
                self._faults.update((run.sequence_id, None) for run in runs)

    def _feed_run(self, run: Run, ended: list[Run]) -> None:
        start, end = 0, len(run.tokens)
        while start < end:
            if not self._batch.room:
                self._flush(ended)
            stop = min(end, start + self._batch.room)
            is_asked = run.asks is not None and stop == end
            self._add_rows(run, start, stop, last_output=is_asked)
            if is_asked:
                ended.append(run)
            start = stop

    def _add_rows(self, run: Run, start: int, stop: int, *, last_output: bool) -> None:
        """Put run.tokens[start:stop] into the batch."""
        self._batch.add_run(run.tokens[start:stop], run.position + start, run.sequence_id, last_output=last_output)

    def _flush(self, ended: list[Run]) -> None:
        """Decode the batch, and let the drafts whose runs ended in it choose their next token."""
        if not self._batch.rows:
            return
        self.context.decode(self._batch)
        self.rows_evaluated += self._batch.rows
        if ended:
            for run, row in zip(ended, self.context.logits, strict=True):
                self._choose(run, row[: self._shared_ids])
        ended.clear()
        self._batch.clear()

    def _choose(self, run: Run, logits: NDArray[np.float32]) -> None:
        """Add to a draft. What goes wrong there, in a request's grammar say, ends the draft and nothing else."""
        assert run.asks is not None
        try:
            run.asks.choose(logits)
        except Exception as error:  # noqa: BLE001
            _log.info("draft model: %s: %s; going on without it", type(error).__name__, error)
            self._faults[run.sequence_id] = None

    def take_faults(self) -> tuple[int, ...]:
        """Sequences for which drafting failed since this was last asked."""
        faults = tuple(self._faults)
        self._faults.clear()
        return faults

    # --- memory ---

    def held(self, sequence_id: int) -> int:
        """How many tokens of a sequence the draft's memory holds."""
        return self.context.pos_max(sequence_id) + 1

    def clear(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self.context.clear_sequence(sequence_id)

    def truncate(self, sequence_id: int, position: int) -> None:
        """Keep the tokens before `position`; where this memory cannot be cut there, nothing is kept."""
        if not self.context.truncate_sequence(sequence_id, position):
            _log.warning("draft model: sequence %d could not be cut at %d and is cleared", sequence_id, position)
            self.context.clear_sequence(sequence_id)

    def fork(self, source_id: int, target_id: int, position: int) -> None:
        """Let the empty sequence `target_id` share what the source holds before `position`."""
        if position:  # a recurrent memory is copied whole whatever the position is
            self.context.copy_sequence(source_id, target_id, position)

    tail_bytes = 0
    """What `tail` gives."""

    def tail(self, sequence_id: int, position: int) -> NDArray[np.uint8]:  # noqa: ARG002 (a plain model has none)
        """What going on from `position` takes beside the memory, for a store; empty: nothing."""
        return np.empty(0, np.uint8)

    def restore_tail(self, sequence_id: int, position: int, tail: NDArray[np.uint8]) -> None:
        """Take back what `tail` gave for that position."""

    def close(self) -> None:
        """Free the draft's context; safe to call twice."""
        self.context.close()

    def __repr__(self) -> str:
        return f"LlamaDrafter({self.context!r}, {self.rows_evaluated} rows evaluated)"


def _started(request: DraftRequest) -> _Draft:
    draft = _Draft(request, Run(request.sequence_id, request.tokens[request.held :], request.held))
    draft.run.asks = draft
    return draft
