"""Performs step plans on llama.cpp: the one place where decisions become effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    FailureKind,
    ForkSequence,
    KvOperation,
    MediaRows,
    PrefillRows,
    Proposal,
    SequenceFault,
    SequenceResult,
    StepFailure,
    StepPlan,
    StepResult,
    StepTimes,
    TruncateSequence,
    changed_sequence,
    media_rows,
    prompt_rows,
)
from forerun.core.verification import Verified, Verify, attempt, verify
from forerun.native.adapters import AppliedAdapters
from forerun.native.batch import Batch
from forerun.native.context import LlamaContext, NativeStepError
from forerun.native.drafter import LlamaDrafter
from forerun.native.encoder import MediaEncoder
from forerun.native.media_batch import MediaBatch
from forerun.native.rollback import Rollback
from forerun.native.segments import Segments

_BACKGROUND_WAIT = 0.05
"""Seconds that a step waits where nothing can be evaluated before the store, or the encoder, has finished something."""


class LlamaRunner:
    """Implements core.step.Runner on a target context and, with a draft model, its drafter. Owns both.

    Called by one thread. `rollback` takes rejected rows back where the target's memory cannot be cut; without one such
    a step fails. `segments` moves what is stored between memory and a store, which it does not own. `adapters`: what
    plans may name. `threads`: asked before each step, of so many rows, how many of the contexts' threads to compute
    with.
    """

    def __init__(
        self,
        context: LlamaContext,
        drafter: LlamaDrafter | None = None,
        verify: Verify = verify,
        rollback: Rollback | None = None,
        segments: Segments | None = None,
        adapters: AppliedAdapters | None = None,
        encoder: MediaEncoder | None = None,
        threads: Callable[[int], int] | None = None,
    ) -> None:
        self.context = context
        self.drafter = drafter
        self._verify_rows = verify
        self._batch = Batch(context.n_batch)
        self._rollback = rollback
        self._segments = segments
        self._adapters = adapters
        self.encoder = encoder
        self._threads = threads

    def execute(self, plan: StepPlan) -> StepResult:
        """Do what the plan says; see core.step. Raises ValueError for a plan that no scheduler should make: one that
        does not fit a batch, or that asks for drafts, adapters or stored segments where there are none."""
        start = perf_counter()
        if self._threads is not None:
            self._limit_threads(self._threads(len(plan.decode) + prompt_rows(plan) + media_rows(plan)))
        if self.encoder is not None:
            self.encoder.perform(plan.media)
        if self._segments is not None:
            self._segments.begin_step()
        try:
            self._prepare(plan)
            result = self._evaluate(plan)
        except NativeStepError as error:
            result = StepResult(0.0, failure=StepFailure(error.kind, str(error)))
        facts: dict[str, Any] = {} if self._segments is None else self._moved(result, self._segments)
        if self.encoder is not None:
            facts["media_events"] = self.encoder.take_events()
        return replace(result, elapsed=perf_counter() - start, held_from=self.context.held_from(), **facts)

    def _limit_threads(self, most: int) -> None:
        self.context.limit_threads(most)
        if self.drafter is not None:
            self.drafter.context.limit_threads(most)

    @staticmethod
    def _moved(result: StepResult, segments: Segments) -> dict[str, Any]:
        """What segment operations came to, also in a failed step, as fields of its result."""
        moved = segments.moved
        return {
            "times": replace(result.times, storing=moved.storing, restoring=moved.restoring),
            "draft_held": segments.draft_held() | dict(result.draft_held),
            "stored": moved.stored,
            "stored_from": moved.stored_from,
            "unrestorable": tuple(moved.unrestorable),
            "store_events": tuple(segments.store.take_events()),
        }

    def _prepare(self, plan: StepPlan) -> None:
        """All but the evaluation. Raises NativeStepError: sequences that were to be changed hold anything then."""
        self._apply_all(plan.operations)
        if plan.waits_for_store and self._segments is not None and not (plan.decode or plan.prefill):
            self._segments.store.wait(_BACKGROUND_WAIT)
        if plan.waits_for_media and self.encoder is not None:
            self.encoder.wait(_BACKGROUND_WAIT)
        self._apply_adapters(plan)

    def _evaluate(self, plan: StepPlan) -> StepResult:
        """The rows of a plan, target and draft."""
        drafter = self._drafter_for(plan)
        if drafter is not None:
            drafter.fill(plan.draft_fills)
        filled = perf_counter()
        proposals = self._propose(drafter, plan) if drafter else {}
        proposed = perf_counter()
        outcomes: dict[int, SequenceResult | SequenceFault] = {}
        verified = proposed
        if plan.decode or plan.prefill:
            try:
                outcomes, verified = self._run_target(plan, proposals)
            except NativeStepError as error:
                return self._failed(plan, drafter, StepFailure(error.kind, str(error)))
        results = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, SequenceResult)}
        faults = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, SequenceFault)}
        held = self._settle_draft(drafter, plan, results) if drafter else {}
        broken = drafter.take_faults() if drafter else ()
        times = StepTimes(verified - proposed, proposed - filled)
        return StepResult(0.0, results, held, faults, draft_faults=broken, times=times)

    # --- after a decode that failed ---

    def _failed(self, plan: StepPlan, drafter: LlamaDrafter | None, failure: StepFailure) -> StepResult:
        """Take back what a decode that failed may have left.

        It writes to cells of its own only, and llama.cpp removes the rows that failed (llama_context::decode), so that
        what was there before is whole where the memory can be cut.
        """
        if self.context.memory.has_state:
            return StepResult(0.0, failure=failure)
        changed = [changed_sequence(operation) for operation in plan.operations]
        kept = dict.fromkeys([sequence_id for sequence_id in changed if sequence_id is not None], 0)
        kept |= {fill.sequence_id: 0 for fill in plan.draft_fills}
        for row in (*plan.decode, *plan.prefill):
            kept.pop(row.sequence_id, None)
            if (rows := self._kept(row)) is not None:
                kept[row.sequence_id] = rows
        held = self._take_back_drafts(drafter, plan) if drafter is not None else {}
        return StepResult(0.0, draft_held=held, failure=failure, kept=kept)

    def _kept(self, row: DecodeRow | PrefillRows | MediaRows) -> int | None:
        """How many of its rows a sequence holds after a decode that failed, drafts cut off; None where it is unknown.
        The last row of a prompt is never kept: what it is there for, a token, has not come."""
        most = len(row.tokens) - (row.sampling is not None) if isinstance(row, PrefillRows) else 0
        rows = min(max(self.context.pos_max(row.sequence_id) + 1 - row.position, 0), most)
        stop = row.position + rows
        is_cut = self.context.truncate_sequence(row.sequence_id, stop)
        return rows if is_cut and (not stop or self.context.ends_at(row.sequence_id, stop)) else None

    @staticmethod
    def _take_back_drafts(drafter: LlamaDrafter, plan: StepPlan) -> dict[int, int]:
        """Cut proposals from the draft's memory; what it then holds, by sequence id."""
        for request in plan.draft_requests:
            drafter.truncate(request.sequence_id, request.held)
        ids = [fill.sequence_id for fill in plan.draft_fills]
        ids += [request.sequence_id for request in plan.draft_requests]
        return {sequence_id: drafter.held(sequence_id) for sequence_id in ids}

    # --- memory operations ---

    def _apply_all(self, operations: tuple[KvOperation, ...]) -> None:
        """Also those after one that failed: the scheduler counts a failed step's operations as applied."""
        failure: NativeStepError | None = None
        for operation in operations:
            try:
                self._apply(operation)
            except NativeStepError as error:
                failure = failure or error
        try:
            if self._segments is not None:
                self._segments.check_windows()
        except NativeStepError as error:
            failure = failure or error
        if failure is not None:
            raise failure

    def _apply(self, operation: KvOperation) -> None:
        match operation:
            case ClearSequence(sequence_id):
                self.context.clear_sequence(sequence_id)
                if self.drafter is not None:
                    self.drafter.clear(sequence_id)
            case TruncateSequence(sequence_id, position):
                self._cut(sequence_id, position.target)
                if self.drafter is not None:
                    self.drafter.truncate(sequence_id, position.draft)
            case ForkSequence(source_id, target_id, position):
                if not self.context.can_cut(source_id, position.target):
                    raise NativeStepError(
                        FailureKind.FAILED, f"sequence {source_id} cannot be forked at position {position.target}"
                    )
                self.context.copy_sequence(source_id, target_id, position.target)
                if not self.context.ends_at(target_id, position.target):
                    held = self.context.pos_max(target_id) + 1
                    raise NativeStepError(
                        FailureKind.FAILED,
                        f"fork of {source_id} at {position.target}: {target_id} holds {held} positions",
                    )
                if self.drafter is not None:
                    self.drafter.fork(source_id, target_id, position.draft)
            case _:
                if self._segments is None:
                    raise ValueError("the plan moves stored segments, but there is no store")
                self._segments.perform(operation)

    def _cut(self, sequence_id: int, position: int) -> None:
        if not self.context.truncate_sequence(sequence_id, position):
            raise NativeStepError(
                FailureKind.FAILED, f"the memory of sequence {sequence_id} cannot be cut at position {position}"
            )

    def _apply_adapters(self, plan: StepPlan) -> None:
        """For all decodes of a step: its rows, those evaluated again after a rejection, and an MTP head's."""
        if not (plan.decode or plan.prefill or plan.draft_fills):
            return
        if self._adapters is not None:
            self._adapters.apply(plan.adapters)
        elif plan.adapters:
            raise ValueError("the plan wants adapters, but there are none")

    # --- drafting ---

    def _drafter_for(self, plan: StepPlan) -> LlamaDrafter | None:
        if not (plan.draft_fills or plan.draft_requests):
            return None
        if self.drafter is None:
            raise ValueError("the plan asks for drafts, but there is no draft model")
        return self.drafter

    @staticmethod
    def _propose(drafter: LlamaDrafter, plan: StepPlan) -> dict[int, Proposal]:
        """What the draft model proposes, by sequence id."""
        proposals = zip(plan.draft_requests, drafter.propose(plan.draft_requests), strict=True)
        return {request.sequence_id: proposal for request, proposal in proposals}

    @staticmethod
    def _settle_draft(drafter: LlamaDrafter, plan: StepPlan, results: dict[int, SequenceResult]) -> dict[int, int]:
        """Cut rejected tokens from the draft's memory; what it then holds, by sequence id."""
        held = {fill.sequence_id: drafter.held(fill.sequence_id) for fill in plan.draft_fills}
        for request in plan.draft_requests:
            if request.sequence_id in results:
                held[request.sequence_id] = drafter.settle(request, results[request.sequence_id].accepted)
        return held

    # --- the target's rows ---

    def _run_target(
        self, plan: StepPlan, proposals: dict[int, Proposal]
    ) -> tuple[dict[int, SequenceResult | SequenceFault], float]:
        """One decode of all rows of text, and one of each media span's, verified, and when that was done; then rejected
        rows are taken back."""
        drafts = [proposals.get(row.sequence_id) or Proposal(row.drafts) for row in plan.decode]
        self._fill_batch(plan, [proposal.tokens for proposal in drafts])
        if self._rollback is None:
            results = self._decoded(plan, drafts)
            verified = perf_counter()
            self._cut_rejected(plan, drafts, results)
            return results, verified
        try:
            for row, proposed in zip(plan.decode, drafts, strict=True):
                if proposed.tokens:
                    self._rollback.remember(row.sequence_id)
            results = self._decoded(plan, drafts)
            verified = perf_counter()
            self._replay(plan, drafts, results, self._rollback)
        finally:
            self._rollback.forget_all()
        return results, verified

    def _decoded(self, plan: StepPlan, drafts: list[Proposal]) -> dict[int, SequenceResult | SequenceFault]:
        """What came of all rows of a plan: each decode's logits are read before the next one."""
        results: dict[int, SequenceResult | SequenceFault] = {}
        if self._batch.rows:
            self.context.decode(self._batch)
            results.update(self._verify(plan, drafts))
        for rows in plan.prefill:
            if isinstance(rows, MediaRows):
                self._decode_media(rows)
                if rows.sampling is not None:
                    verified = attempt(verify, self.context.logits, (), rows.sampling, 1, ())
                    results[rows.sequence_id] = _outcome(verified, 0)
        return results

    def _decode_media(self, rows: MediaRows) -> None:
        """In as many decodes as a batch makes of it; as one where its rows look at each other."""
        if self.encoder is None:
            raise NativeStepError(FailureKind.FAILED, "the plan has media, but there is no projector")
        encoded = self.encoder.encoded_span(rows.media.media_span)
        if not encoded.is_causal:
            self.context.decode_together(MediaBatch(rows, encoded, rows.start, rows.stop))
            return
        for start in range(rows.start, rows.stop, self.context.n_batch):
            stop = min(start + self.context.n_batch, rows.stop)
            self.context.decode(MediaBatch(rows, encoded, start, stop))

    def _cut_rejected(
        self, plan: StepPlan, drafts: list[Proposal], results: dict[int, SequenceResult | SequenceFault]
    ) -> None:
        """The pending token and all new tokens but the last stay."""
        for row, tokens in _rejected(plan, drafts, results):
            self._cut(row.sequence_id, row.position + len(tokens))

    def _replay(
        self,
        plan: StepPlan,
        drafts: list[Proposal],
        results: dict[int, SequenceResult | SequenceFault],
        rollback: Rollback,
    ) -> None:
        """Go back to before the decode where a row was rejected, and evaluate the confirmed ones again, all at once."""
        batch = self._batch
        batch.clear()
        for row, tokens in _rejected(plan, drafts, results):
            rollback.go_back(row.sequence_id)
            confirmed = np.array([row.token, *tokens[:-1]], np.int32)
            batch.add_run(confirmed, row.position, row.sequence_id, last_output=False)
        if batch.rows:
            self.context.decode(batch)

    def _fill_batch(self, plan: StepPlan, drafts: list[tuple[int, ...]]) -> None:
        """Decode rows first, each followed by its drafts; then prefill runs."""
        batch = self._batch
        batch.clear()
        needed = len(plan.decode) + sum(map(len, drafts)) + _prefill_rows(plan)
        if needed > batch.capacity:
            raise ValueError(f"the plan has {needed} rows, a batch holds {batch.capacity}")
        for row, proposed in zip(plan.decode, drafts, strict=True):
            batch.add_row(row.token, row.position, row.sequence_id)
            for offset, token in enumerate(proposed, 1):
                batch.add_row(token, row.position + offset, row.sequence_id)
        for run in plan.prefill:
            if isinstance(run, PrefillRows):
                batch.add_run(run.tokens, run.position, run.sequence_id, last_output=run.sampling is not None)

    def _verify(self, plan: StepPlan, drafts: list[Proposal]) -> Iterator[tuple[int, SequenceResult | SequenceFault]]:
        """Choose tokens from the logits. What goes wrong with one request's choice is no other one's fault."""
        logits = self.context.logits
        first = 0
        for row, proposal in zip(plan.decode, drafts, strict=True):
            tokens, rows = proposal.tokens, 1 + len(proposal.tokens)
            block = logits[first : first + rows]
            verified = attempt(self._verify_rows, block, tokens, row.sampling, row.max_tokens, proposal.drawn_from)
            first += rows
            yield row.sequence_id, _outcome(verified, rows - 1)
        for run in plan.prefill:
            if isinstance(run, PrefillRows) and run.sampling is not None:
                yield run.sequence_id, _outcome(attempt(verify, logits[first : first + 1], (), run.sampling, 1, ()), 0)
                first += 1

    def close(self) -> None:
        """Free both contexts (not their models), once what is being encoded has ended; safe to call twice."""
        if self.encoder is not None:
            self.encoder.close()
        if self.drafter is not None:
            self.drafter.close()
        self.context.close()

    def __repr__(self) -> str:
        return f"LlamaRunner({self.context!r}, drafter={self.drafter!r})"


def _prefill_rows(plan: StepPlan) -> int:
    return sum(len(run.tokens) for run in plan.prefill if isinstance(run, PrefillRows))


def _rejected(
    plan: StepPlan, drafts: list[Proposal], results: dict[int, SequenceResult | SequenceFault]
) -> Iterator[tuple[DecodeRow, tuple[int, ...]]]:
    """Rows with rejected drafts, and the tokens that came."""
    for row, proposed in zip(plan.decode, drafts, strict=True):
        result = results[row.sequence_id]
        if isinstance(result, SequenceResult) and len(result.tokens) <= len(proposed.tokens):
            yield row, result.tokens


def _outcome(verified: Verified | SequenceFault, drafted: int) -> SequenceResult | SequenceFault:
    if isinstance(verified, SequenceFault):
        return verified
    return SequenceResult(verified.tokens, drafted, verified.accepted, logprobs=verified.logprobs)
