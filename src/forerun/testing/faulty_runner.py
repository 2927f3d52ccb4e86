"""Any runner, with faults: it does part of a plan, or all of it, and says that it failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from forerun.core.step import (
    ClearSequence,
    FailureKind,
    ForkSequence,
    KvOperation,
    RestoreSegment,
    Runner,
    SequenceFault,
    StepFailure,
    StepPlan,
    StepResult,
    StoreSegment,
    changed_sequence,
)
from forerun.testing.faults import Fault, RequestOf, SeededFaults, Strike

_SLOW = 0.05
"""Seconds that a slow step takes longer."""
_KINDS = {Fault.ABORTED: FailureKind.ABORTED, Fault.NO_ROOM: FailureKind.NO_ROOM}
_MESSAGE = "injected"


class FaultyRunner(Runner):
    """Performs plans on another runner, and lets a schedule of faults strike.

    What a struck step leaves in memory is what a native one would: nothing of its rows, those of some sequences, or
    all of them; an operation that was not done, and then no row. Another fault of the runner's own may come on top.
    `sleep` passes the time of slow steps.
    """

    def __init__(
        self,
        runner: Runner,
        faults: SeededFaults,
        request_of: RequestOf,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.faults = faults
        self._runner = runner
        self._request_of = request_of
        self._sleep = sleep

    def execute(self, plan: StepPlan) -> StepResult:
        strike = self.faults.strike(plan, self._request_of)
        result = self._runner.execute(plan) if strike is None else self._struck(plan, strike)
        self.faults.ended(plan, result, self._request_of)
        return result

    def _struck(self, plan: StepPlan, strike: Strike) -> StepResult:
        match strike.fault:
            case Fault.SLOW:
                self._sleep(_SLOW)
                result = self._runner.execute(plan)
                return replace(result, elapsed=result.elapsed + _SLOW)
            case Fault.DRAFT:
                return self._without_draft(plan)
            case Fault.STORE:
                return self._without_copy(plan, strike.operation)
            case Fault.RESTORE:
                return self._without_restoring(plan, strike)
            case Fault.FORK | Fault.TRUNCATE:
                return self._without_operation(plan, strike)
            case Fault.NOT_BEGUN | Fault.NO_ROOM:
                return _failed(self._runner.execute(_rowless(plan)), strike)
            case Fault.HALFWAY | Fault.ABORTED:
                return _failed(self._runner.execute(_halved(plan)), strike)
            case Fault.LATE:
                return _failed(self._runner.execute(plan), strike)
            case Fault.LOGITS:
                return self._with_broken_logits(plan, strike)

    def _without_draft(self, plan: StepPlan) -> StepResult:
        result = self._runner.execute(replace(plan, draft_fills=(), draft_requests=()))
        held = {fill.sequence_id: fill.position for fill in plan.draft_fills}
        held |= {request.sequence_id: request.held for request in plan.draft_requests}
        return replace(result, draft_held=held | dict(result.draft_held))

    def _without_copy(self, plan: StepPlan, index: int) -> StepResult:
        operation = plan.operations[index]
        assert isinstance(operation, StoreSegment)
        result = self._runner.execute(_without(plan, {index}))
        return replace(result, stored={**result.stored, operation.header.key: 0})

    def _without_restoring(self, plan: StepPlan, strike: Strike) -> StepResult:
        operation = plan.operations[strike.operation]
        assert isinstance(operation, RestoreSegment)
        result = self._without_operation(plan, strike)
        return replace(result, unrestorable=tuple(dict.fromkeys((*result.unrestorable, operation.key))))

    def _without_operation(self, plan: StepPlan, strike: Strike) -> StepResult:
        """No decode begins after an operation that failed, so this is the failure, whichever the runner itself adds;
        and nothing is kept, since that is for sequences whose operations are all done."""
        left_out = _spoilt(plan.operations, strike.operation)
        result = self._runner.execute(_without(_rowless(plan), left_out))
        copies = [plan.operations[index] for index in sorted(left_out)]
        stored = dict(result.stored) | {copy.header.key: 0 for copy in copies if isinstance(copy, StoreSegment)}
        return replace(result, failure=_failure(strike), kept={}, draft_held={}, stored=stored)

    def _with_broken_logits(self, plan: StepPlan, strike: Strike) -> StepResult:
        """A culprit's row is broken, where it asks for a token; else the first one's that does."""
        result = self._runner.execute(plan)
        whose = [key for key in result.sequences if strike.culprit in (None, self._request_of(key))][:1]
        sequences = {key: one for key, one in result.sequences.items() if key not in whose}
        broken = dict.fromkeys(whose, SequenceFault(f"{_MESSAGE}: {strike.fault}"))
        return replace(result, sequences=sequences, faults={**result.faults, **broken})

    def close(self) -> None:
        self._runner.close()

    def __repr__(self) -> str:
        return f"FaultyRunner({self.faults!r}, {self._runner!r})"


def _rowless(plan: StepPlan) -> StepPlan:
    """The operations alone."""
    return replace(plan, draft_fills=(), draft_requests=(), decode=(), prefill=())


def _without(plan: StepPlan, left_out: Collection[int]) -> StepPlan:
    """All but some operations, given by index."""
    kept = [operation for index, operation in enumerate(plan.operations) if index not in left_out]
    return replace(plan, operations=tuple(kept))


def _spoilt(operations: Sequence[KvOperation], failed: int) -> set[int]:
    """Indices of an operation that fails, and of those after it that fail with it: they copy what is not there, or go
    on from it."""
    spoilt, unsound = {failed}, {changed_sequence(operations[failed])}
    for index in range(failed + 1, len(operations)):
        match operations[index]:
            case ClearSequence(sequence_id):
                unsound.discard(sequence_id)
            case StoreSegment(sequence_id) | RestoreSegment(sequence_id) if sequence_id in unsound:
                spoilt.add(index)
            case ForkSequence(source_id, target_id) if source_id in unsound:
                spoilt.add(index)
                unsound.add(target_id)
    return spoilt


def _halved(plan: StepPlan) -> StepPlan:
    """The first half of the rows' sequences, drafts included."""
    half = (len(plan.decode) + len(plan.prefill)) // 2
    decode = plan.decode[:half]
    kept = {row.sequence_id for row in decode}
    requests = tuple(request for request in plan.draft_requests if request.sequence_id in kept)
    return replace(plan, decode=decode, prefill=plan.prefill[: half - len(decode)], draft_requests=requests)


def _failed(result: StepResult, strike: Strike) -> StepResult:
    if result.failure is not None:
        return result
    return replace(result, sequences={}, draft_held={}, failure=_failure(strike))


def _failure(strike: Strike) -> StepFailure:
    whose = "" if strike.culprit is None else f", by {strike.culprit}"
    return StepFailure(_KINDS.get(strike.fault, FailureKind.FAILED), f"{_MESSAGE}: {strike.fault}{whose}")
