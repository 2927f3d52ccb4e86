"""Performs step plans on llama.cpp: the one place where decisions become effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from forerun.core.sampling import BrokenLogitsError, SamplingContext
from forerun.core.step import (
    ClearSequence,
    FailureKind,
    ForkSequence,
    KvOperation,
    MediaRows,
    PrefillRows,
    Proposal,
    SequenceResult,
    StepFailure,
    StepPlan,
    StepResult,
    StepTimes,
    TruncateSequence,
)
from forerun.core.verification import Verified, Verify, verify
from forerun.native.adapters import AppliedAdapters
from forerun.native.batch import Batch
from forerun.native.context import LlamaContext, NativeStepError
from forerun.native.drafter import LlamaDrafter
from forerun.native.rollback import Rollback
from forerun.native.segments import Segments

_STORE_WAIT = 0.05
"""Seconds that a step waits for the store where nothing can be evaluated before it has finished something."""


class LlamaRunner:
    """Implements core.step.Runner on a target context and, with a draft model, its drafter. Owns both.

    Called by one thread. `rollback` takes rejected rows back where the target's memory cannot be cut; without one such
    a step fails. `segments` moves what is stored between memory and a store, which it does not own. `adapters`: what
    plans may name.
    """

    def __init__(
        self,
        context: LlamaContext,
        drafter: LlamaDrafter | None = None,
        verify: Verify = verify,
        rollback: Rollback | None = None,
        segments: Segments | None = None,
        adapters: AppliedAdapters | None = None,
    ) -> None:
        self.context = context
        self.drafter = drafter
        self._verify_rows = verify
        self._batch = Batch(context.n_batch)
        self._rollback = rollback
        self._segments = segments
        self._adapters = adapters

    def execute(self, plan: StepPlan) -> StepResult:
        """Do what the plan says; see core.step. Raises ValueError for a plan that no scheduler should make: one that
        does not fit a batch, or that asks for drafts, adapters or stored segments where there are none."""
        start = perf_counter()
        if self._segments is not None:
            self._segments.begin_step()
        try:
            result = self._perform(plan, start)
        except NativeStepError as error:
            result = self._failed(start, StepFailure(error.kind, str(error)))
        except BrokenLogitsError as error:
            result = self._failed(start, StepFailure(FailureKind.FAILED, str(error)))
        return result if self._segments is None else self._with_moved(result, self._segments)

    def _failed(self, start: float, failure: StepFailure) -> StepResult:
        return StepResult(perf_counter() - start, failure=failure, held_from=self.context.held_from())

    @staticmethod
    def _with_moved(result: StepResult, segments: Segments) -> StepResult:
        """With what segment operations came to, also in a failed step."""
        moved = segments.moved
        return replace(
            result,
            times=replace(result.times, storing=moved.storing, restoring=moved.restoring),
            draft_held=segments.draft_held() | dict(result.draft_held),
            stored=moved.stored,
            stored_from=moved.stored_from,
            unrestorable=tuple(moved.unrestorable),
            store_events=tuple(segments.store.take_events()),
        )

    def _perform(self, plan: StepPlan, start: float) -> StepResult:
        self._apply_all(plan.operations)
        if plan.waits_for_store and self._segments is not None and not (plan.decode or plan.prefill):
            self._segments.store.wait(_STORE_WAIT)
        self._apply_adapters(plan)
        drafter = self._drafter_for(plan)
        if drafter is not None:
            drafter.fill(plan.draft_fills)
        filled = perf_counter()
        proposals = self._propose(drafter, plan) if drafter else {}
        proposed = perf_counter()
        results, verified = self._run_target(plan, proposals) if plan.decode or plan.prefill else ({}, proposed)
        draft_held = self._settle_draft(drafter, plan, results) if drafter else {}
        times = StepTimes(verified - proposed, proposed - filled)
        return StepResult(perf_counter() - start, results, draft_held, times=times, held_from=self.context.held_from())

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
                held = self.context.pos_max(target_id) + 1
                if held != position.target:
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
            held[request.sequence_id] = drafter.settle(request, results[request.sequence_id].accepted)
        return held

    # --- the target's rows ---

    def _run_target(self, plan: StepPlan, proposals: dict[int, Proposal]) -> tuple[dict[int, SequenceResult], float]:
        """One decode of all rows, verified, and when that was done; then rejected rows are taken back."""
        drafts = [proposals.get(row.sequence_id) or Proposal(row.drafts) for row in plan.decode]
        self._fill_batch(plan, [proposal.tokens for proposal in drafts])
        if self._rollback is None:
            self.context.decode(self._batch)
            results = dict(self._verify(plan, drafts))
            verified = perf_counter()
            self._cut_rejected(plan, drafts, results)
            return results, verified
        try:
            for row, proposed in zip(plan.decode, drafts, strict=True):
                if proposed.tokens:
                    self._rollback.remember(row.sequence_id)
            self.context.decode(self._batch)
            results = dict(self._verify(plan, drafts))
            verified = perf_counter()
            self._replay(plan, drafts, results, self._rollback)
        finally:
            self._rollback.forget_all()
        return results, verified

    def _cut_rejected(self, plan: StepPlan, drafts: list[Proposal], results: dict[int, SequenceResult]) -> None:
        """The pending token and all new tokens but the last stay."""
        for row, proposed in zip(plan.decode, drafts, strict=True):
            kept = len(results[row.sequence_id].tokens)
            if kept <= len(proposed.tokens):
                self._cut(row.sequence_id, row.position + kept)

    def _replay(
        self,
        plan: StepPlan,
        drafts: list[Proposal],
        results: dict[int, SequenceResult],
        rollback: Rollback,
    ) -> None:
        """Go back to before the decode where a row was rejected, and evaluate the confirmed ones again, all at once."""
        batch = self._batch
        batch.clear()
        for row, proposed in zip(plan.decode, drafts, strict=True):
            tokens = results[row.sequence_id].tokens
            if len(tokens) > len(proposed.tokens):
                continue
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
            if isinstance(run, MediaRows):
                raise NativeStepError(FailureKind.FAILED, "this runner does not evaluate media")
            batch.add_run(run.tokens, run.position, run.sequence_id, last_output=run.sampling is not None)

    def _verify(self, plan: StepPlan, drafts: list[Proposal]) -> Iterator[tuple[int, SequenceResult]]:
        """Choose tokens from the logits."""
        logits = self.context.logits
        first = 0
        for row, proposal in zip(plan.decode, drafts, strict=True):
            tokens, rows = proposal.tokens, 1 + len(proposal.tokens)
            block = logits[first : first + rows]
            verified = self._verify_rows(block, tokens, row.sampling, row.max_tokens, proposal.drawn_from)
            first += rows
            yield row.sequence_id, _result(verified, rows - 1)
        for run in plan.prefill:
            if run.sampling is not None:
                yield run.sequence_id, _result(_first_token(logits[first : first + 1], run.sampling), 0)
                first += 1

    def close(self) -> None:
        """Free both contexts (not their models); safe to call twice."""
        if self.drafter is not None:
            self.drafter.close()
        self.context.close()

    def __repr__(self) -> str:
        return f"LlamaRunner({self.context!r}, drafter={self.drafter!r})"


def _prefill_rows(plan: StepPlan) -> int:
    return sum(len(run.tokens) for run in plan.prefill if isinstance(run, PrefillRows))


def _first_token(rows: NDArray[np.float32], sampling: SamplingContext) -> Verified:
    return verify(rows, (), sampling, 1)


def _result(verified: Verified, drafted: int) -> SequenceResult:
    return SequenceResult(verified.tokens, drafted, verified.accepted, logprobs=verified.logprobs)
