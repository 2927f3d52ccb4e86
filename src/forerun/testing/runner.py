"""Performs plans on the fake model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from forerun.core.adapters import NO_CONTENTS, AdapterSet
from forerun.core.costs import StepCosts
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import (
    SegmentHeader,
    SegmentStore,
)
from forerun.core.speculation import rows_by_depth
from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    DropSegment,
    FailureKind,
    FetchSegment,
    ForkSequence,
    KvOperation,
    MediaRows,
    PersistSegment,
    PrefillRows,
    Proposal,
    RemoveSegment,
    RestoreSegment,
    SequenceFault,
    SequenceResult,
    StepFailure,
    StepPlan,
    StepResult,
    StepTimes,
    StoreSegment,
    TruncateSequence,
    changed_sequence,
    prompt_rows,
    tokens_of,
)
from forerun.core.verification import Verified, Verify, attempt, verify
from forerun.testing.drafter import FakeDrafter
from forerun.testing.encoder import FakeEncoder
from forerun.testing.memory import GARBAGE, FakeMemory, FakeMemoryError, remember, take_back
from forerun.testing.model import adapted, fake_logits, media_codes
from forerun.testing.store import packed, unpacked

Faults = Mapping[int, SequenceFault]
FaultSchedule = Callable[[StepPlan], StepFailure | Faults | None]
"""What goes wrong in a step, if anything: all of it, or some sequences alone."""


class FakeRunner:
    """Performs plans on the fake model.

    `faults` is asked before each step. A failure it returns fails the step as a native decode would: ABORTED when half
    of each prompt's rows were evaluated, NO_ROOM before anything was, others after some garbage was written. `kind` is
    the target's memory. Steps take `seconds_per_step`, or with `costs` what those say, draft included, so that speed
    can be simulated. `verify` may be a SyntheticAcceptance's.
    """

    def __init__(
        self,
        n_ctx: int,
        vocabulary_size: int = 5,
        *,
        drafter: FakeDrafter | None = None,
        faults: FaultSchedule | None = None,
        kind: MemoryKind = DENSE,
        seconds_per_step: float = 0.01,
        costs: StepCosts | None = None,
        verify: Verify = verify,
        store: SegmentStore | None = None,
        adapters: Mapping[str, str] = NO_CONTENTS,
        encoder: FakeEncoder | None = None,
    ) -> None:
        self.memory = FakeMemory(n_ctx, kind)
        self.adapters = adapters
        """Those there are, each with its content: what is evaluated with one depends on that."""
        self.store = store
        self.encoder = encoder or FakeEncoder()
        self.restored = 0
        """Target cells that came back from the store."""
        self.drafter = drafter
        self.faults = faults
        self.rows = 0
        """Target rows evaluated so far, those evaluated again after a rejection left out."""
        self.replayed = 0
        """Rows evaluated again after a rejection."""
        self.is_closed = False
        self._applied: AdapterSet = ()
        self._faults: dict[int, SequenceFault] = {}
        self._size = vocabulary_size
        self._seconds = seconds_per_step
        self._costs = costs
        self._verify = verify

    def execute(self, plan: StepPlan) -> StepResult:
        self._stored: dict[str, int] = {}
        self._stored_from: dict[str, int] = {}
        self._unrestorable: list[str] = []
        self.encoder.perform(plan.media)
        result = self._execute(plan)
        if self.store is not None and plan.waits_for_store:
            self.store.wait(1.0)
        events = tuple(self.store.take_events()) if self.store else ()
        return replace(
            result,
            stored=self._stored,
            stored_from=self._stored_from,
            unrestorable=tuple(self._unrestorable),
            store_events=events,
            media_events=self.encoder.pass_step(),
        )

    def _execute(self, plan: StepPlan) -> StepResult:
        try:
            self._apply_all(plan.operations)
            failure = self.faults(plan) if self.faults else None
            if isinstance(failure, StepFailure):
                kept = self._fail(plan, failure)
                return StepResult(self._seconds, failure=failure, kept=kept, held_from=self.memory.held_from())
            self._faults = dict(failure or {})
            cells, rows, replayed = self.memory.used, self.rows, self.replayed
            results = self._evaluate(plan)
            held = self._draft_held(plan, results)
            held_from = self.memory.held_from()
            if self._costs is None:
                return StepResult(self._seconds, results, held, self._faults, held_from=held_from)
            times = _simulated(self._costs, plan, self.rows - rows, cells)
            fills = [fill.tokens.size for fill in plan.draft_fills]
            filling = self._costs.draft.predict(sum(fills), logits=0) / 1e3 if fills and self._costs.draft else 0.0
            replaying = self._costs.target.predict(self.replayed - replayed, cells) / 1e3
            elapsed = times.target + times.draft + filling + replaying
            return StepResult(elapsed, results, held, self._faults, times=times, held_from=held_from)
        except FakeMemoryError as error:
            failure = StepFailure(FailureKind.FAILED, str(error))
            return StepResult(self._seconds, failure=failure, held_from=self.memory.held_from())

    def _apply_all(self, operations: Sequence[KvOperation]) -> None:
        """Also those after one that failed: a failed step's operations count as applied."""
        failure: FakeMemoryError | None = None
        for operation in operations:
            try:
                self._apply(operation)
            except FakeMemoryError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _apply(self, operation: KvOperation) -> None:
        if self.store is not None:
            self._apply_to_store(operation, self.store)
        memories = [self.memory, *([self.drafter.memory] if self.drafter else [])]
        for index, memory in enumerate(memories):
            match operation:
                case ClearSequence(sequence_id):
                    memory.clear(sequence_id)
                case TruncateSequence(sequence_id, position):
                    memory.truncate(sequence_id, position.draft if index else position.target)
                case ForkSequence(source_id, target_id, position):
                    memory.fork(source_id, target_id, position.draft if index else position.target)

    def _apply_to_store(self, operation: KvOperation, store: SegmentStore) -> None:
        match operation:
            case StoreSegment(sequence_id, header):
                first = self.memory.held_from().get(sequence_id, 0)
                if first > header.start.native_position:
                    self._stored_from[header.key] = first
                self._stored[header.key] = 0  # unless it can be taken
                self._stored[header.key] = store.put(header, self._exported(sequence_id, header))
            case RestoreSegment():
                self._restore(operation, store)
            case DropSegment(key):
                store.drop(key)
            case PersistSegment(key):
                store.persist(key)
            case FetchSegment(key):
                store.fetch(key)
            case RemoveSegment(key):
                store.remove(key)

    def _exported(self, sequence_id: int, header: SegmentHeader) -> PromptCheckpointState:
        target = self.memory.export(sequence_id, header.start.native_position, header.stop.native_position)
        if self.drafter is None:
            return PromptCheckpointState.target(packed(target))
        start = header.start.text_tokens
        has_draft = header.draft_stop > start
        draft = self.drafter.memory.export(sequence_id, start, header.draft_stop) if has_draft else target[:0]
        return PromptCheckpointState.speculative(packed(target, draft))

    def _restore(self, operation: RestoreSegment, store: SegmentStore) -> None:
        """What memory refuses is no fault of the segment's: only what the store has lost is unrestorable."""
        sequence_id, start, stop = operation.sequence_id, operation.start, operation.stop
        try:
            target, draft = unpacked(store.get(operation.key).state)
        except KeyError as error:
            self._unrestorable.append(operation.key)
            raise FakeMemoryError(f"segment {operation.key} cannot be restored: {error}") from error
        self.memory.restore(sequence_id, target, start.target, stop.target)
        self.restored += stop.target - start.target
        if self.drafter is not None and stop.draft > start.draft:
            self.drafter.memory.restore(sequence_id, draft, start.draft, stop.draft)

    def _fail(self, plan: StepPlan, failure: StepFailure) -> dict[int, int]:
        """What a failed decode leaves; what of it is known."""
        if failure.kind is FailureKind.FAILED or not self.memory.kind.is_dense:
            self._leave_garbage(plan)
            return {}
        self._applied = plan.adapters
        changed = (changed_sequence(operation) for operation in plan.operations)
        kept = dict.fromkeys([sequence_id for sequence_id in changed if sequence_id is not None], 0)
        kept |= dict.fromkeys(plan.sequence_ids(), 0)
        for rows in plan.prefill if failure.kind is FailureKind.ABORTED else ():
            if isinstance(rows, PrefillRows):
                done = kept[rows.sequence_id] = rows.tokens.size // 2
                self.memory.append(rows.sequence_id, self._adapted(rows.tokens[:done].tolist()), rows.position)
                self.rows += done
        for rows in plan.prefill:
            if isinstance(rows, MediaRows):
                self.memory.truncate(rows.sequence_id, rows.position)
        return kept

    def _leave_garbage(self, plan: StepPlan) -> None:
        for sequence_id in plan.sequence_ids():
            if self.memory.used < self.memory.capacity:
                self.memory.append(sequence_id, [GARBAGE], self.memory.next_position(sequence_id))

    def _evaluate(self, plan: StepPlan) -> dict[int, SequenceResult]:
        proposals = self._draft(plan)
        self._applied = plan.adapters
        results: dict[int, SequenceResult] = {}
        for row in plan.decode:
            self._decode(row, proposals, results)
        for rows in plan.prefill:
            self._prefill(rows)
            self.rows += tokens_of(rows)
            if rows.sampling is not None:
                verified = attempt(self._verify, self._logits(rows.sequence_id)[None, :], (), rows.sampling, 1)
                if self._is_sound(verified, rows.sequence_id):
                    results[rows.sequence_id] = SequenceResult(verified.tokens, logprobs=verified.logprobs)
        return results

    def _prefill(self, rows: PrefillRows | MediaRows) -> None:
        if isinstance(rows, PrefillRows):
            self.memory.append(rows.sequence_id, self._adapted(rows.tokens.tolist()), rows.position)
            return
        if not self.encoder.is_ready(rows.media):
            raise FakeMemoryError(f"{rows.media!r} is not encoded")
        self.memory.append_media(rows.sequence_id, self._adapted(media_codes(rows.media)), rows)

    def _is_sound(self, verified: Verified | SequenceFault, sequence_id: int) -> TypeGuard[Verified]:
        if isinstance(verified, SequenceFault):
            self._faults[sequence_id] = verified
        return sequence_id not in self._faults

    def _draft(self, plan: StepPlan) -> dict[int, Proposal]:
        if self.drafter is None:
            return {}
        for fill in plan.draft_fills:
            self.drafter.evaluate(fill.sequence_id, fill.tokens, fill.position)
        proposed = self.drafter.propose(plan.draft_requests)
        return {
            request.sequence_id: proposal
            for request, proposal in zip(plan.draft_requests, proposed, strict=True)
            if proposal.tokens
        }

    def _decode(self, row: DecodeRow, proposals: dict[int, Proposal], results: dict[int, SequenceResult]) -> None:
        proposal = proposals.get(row.sequence_id) or Proposal(row.drafts)
        drafts = proposal.tokens
        logits = np.empty((len(drafts) + 1, self._size), np.float32)
        remember(self.memory, row.sequence_id)
        for index, token in enumerate((row.token, *drafts)):
            self.memory.append(row.sequence_id, self._adapted([token]), row.position + index, batch_from=row.position)
            logits[index] = self._logits(row.sequence_id)
        self.rows += len(logits)
        verified = attempt(self._verify, logits, drafts, row.sampling, row.max_tokens, proposal.drawn_from)
        if not self._is_sound(verified, row.sequence_id):
            take_back(self.memory, row.sequence_id, row.position)
            return
        kept = len(verified.tokens)
        if take_back(self.memory, row.sequence_id, row.position + kept):
            self.memory.append(row.sequence_id, self._adapted([row.token, *verified.tokens[:-1]]), row.position)
            self.replayed += kept
        accepted, logprobs = verified.accepted, verified.logprobs
        results[row.sequence_id] = SequenceResult(verified.tokens, len(drafts), accepted, logprobs)

    def _draft_held(self, plan: StepPlan, results: dict[int, SequenceResult]) -> dict[int, int]:
        """Cut rejected tokens from the draft's memory; what it then holds, by sequence id."""
        if self.drafter is None:
            return {}
        memory = self.drafter.memory
        for request in plan.draft_requests:
            result = results.get(request.sequence_id)
            take_back(memory, request.sequence_id, request.tokens.size + (result.accepted if result else 0))
        ids = [fill.sequence_id for fill in plan.draft_fills] + [request.sequence_id for request in plan.draft_requests]
        return {sequence_id: memory.held(sequence_id) for sequence_id in ids}

    def _adapted(self, codes: Iterable[int]) -> list[int]:
        return adapted(codes, self._applied, self.adapters)

    def _logits(self, sequence_id: int) -> NDArray[np.float32]:
        return fake_logits(self.memory.digest(sequence_id), self._size)

    def close(self) -> None:
        self.is_closed = True

    def __repr__(self) -> str:
        return f"FakeRunner({self.rows} rows evaluated, {self.memory!r})"


def _simulated(costs: StepCosts, plan: StepPlan, rows: int, cells: int) -> StepTimes:
    draft_ms = 0.0
    if plan.draft_requests and costs.draft is not None:
        draft_ms = sum(costs.draft.predict(count) for count in rows_by_depth(plan.draft_requests))
    target_ms = costs.target.predict(rows, cells, logits=rows - prompt_rows(plan))
    return StepTimes(target_ms / 1e3, draft_ms / 1e3)
