"""Performs plans by counting: cells, bytes and milliseconds, no tokens' contents.

A FakeRunner for long simulations. It agrees with it on every plan, every cell and every millisecond
(tests/simulation/test_runner.py), at a hundredth of the cost: a run of tokens is one number here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forerun.core.cells import CellLedger
from forerun.core.sampling import SamplingContext
from forerun.core.segment import SegmentHeader, StoreEvent, StoreEventKind
from forerun.core.speculation import rows_by_depth
from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    FetchSegment,
    ForkSequence,
    KvOperation,
    MediaRows,
    PersistSegment,
    PrefillRows,
    RestoreSegment,
    SequenceResult,
    StepPlan,
    StepResult,
    StepTimes,
    StoreSegment,
    TruncateSequence,
    prompt_rows,
    tokens_of,
)
from forerun.core.synthetic import SyntheticAcceptance
from forerun.simulation.conversation import VOCABULARY_SIZE
from forerun.simulation.machine import Machine


class SimulatedRunner:
    """Implements core.step.Runner for text on dense memory. What it says is a hash of the request's seed.

    `acceptance`: how often a drafted token is right, by chance (core/synthetic.py).
    """

    def __init__(self, machine: Machine, sequences: int, acceptance: SyntheticAcceptance | None = None) -> None:
        self.machine = machine
        self.cells = CellLedger(sequences)
        self.draft_cells = CellLedger(sequences)
        self.rows = 0
        """Target rows evaluated so far."""
        self._acceptance = acceptance
        self._bytes: dict[str, int] = {}
        """Of every segment ever stored."""
        self._disk_is_busy_until = 0.0
        self._events: list[tuple[float, StoreEvent]] = []
        """What the disk will have done, and when."""

    def execute(self, plan: StepPlan) -> StepResult:
        stored = self._apply_all(plan)
        restored = [self._bytes_of(one) for one in plan.operations if isinstance(one, RestoreSegment)]
        copying = self.machine.copying
        storing, restoring = sum(stored.values()) / copying, sum(restored) / copying
        cells, rows_before = self.cells.used, self.rows
        sequences = self._evaluate(plan)
        rows = self.rows - rows_before
        target_ms = self.machine.target.predict(rows, cells, logits=rows - prompt_rows(plan))
        draft_ms, fill_ms = self._draft_ms(plan)
        overhead_ms = self.machine.overhead_ms if rows else 0.0
        elapsed = (target_ms + draft_ms + fill_ms + overhead_ms) / 1e3 + storing + restoring
        if plan.waits_for_store and self._events:
            elapsed = max(elapsed, self._events[0][0] - plan.now)
        return StepResult(
            elapsed,
            sequences,
            self._draft_held(plan, sequences),
            times=StepTimes(target_ms / 1e3, draft_ms / 1e3, storing, restoring),
            stored=stored,
            store_events=self._take_events(plan.now + elapsed),
        )

    # --- operations ----------------------------------------------------------

    def _apply_all(self, plan: StepPlan) -> dict[str, int]:
        """Bytes of each segment that is stored."""
        stored: dict[str, int] = {}
        for operation in plan.operations:
            self._apply(operation)
            if isinstance(operation, StoreSegment):
                stored[operation.header.key] = self._bytes[operation.header.key] = self._size(operation.header)
            elif isinstance(operation, PersistSegment):
                self._use_disk(plan.now, StoreEventKind.PERSISTED, operation.key)
            elif isinstance(operation, FetchSegment):
                self._use_disk(plan.now, StoreEventKind.FETCHED, operation.key)
        return stored

    def _apply(self, operation: KvOperation) -> None:
        target, draft = self.cells, self.draft_cells
        match operation:
            case ClearSequence(sequence_id):
                target.clear(sequence_id)
                draft.clear(sequence_id)
            case TruncateSequence(sequence_id, position):
                target.truncate(sequence_id, position.target)
                draft.truncate(sequence_id, position.draft)
            case ForkSequence(source_id, target_id, position):
                target.fork(source_id, target_id, min(position.target, target.held(source_id)))
                draft.fork(source_id, target_id, min(position.draft, draft.held(source_id)))
            case RestoreSegment(sequence_id, _, start, stop):
                target.append(sequence_id, stop.target - start.target)
                draft.append(sequence_id, max(0, stop.draft - start.draft))

    def _size(self, header: SegmentHeader) -> int:
        return self.machine.sizes.predict(header.tokens, max(0, header.draft_stop - header.start.text_tokens))

    def _bytes_of(self, restored: RestoreSegment) -> int:
        tokens, draft_tokens = (stop - start for start, stop in _both(restored))
        return self.machine.sizes.predict(tokens, max(0, draft_tokens))

    def _use_disk(self, now: float, kind: StoreEventKind, key: str) -> None:
        """One thing after the other, as its worker does."""
        nbytes = self._bytes[key]
        began = max(now, self._disk_is_busy_until)
        self._disk_is_busy_until = began + nbytes / self.machine.disk
        self._events.append((self._disk_is_busy_until, StoreEvent(kind, key, nbytes)))

    def _take_events(self, now: float) -> tuple[StoreEvent, ...]:
        done = sum(due <= now for due, _ in self._events)
        events = tuple(event for _, event in self._events[:done])
        del self._events[:done]
        return events

    # --- rows ----------------------------------------------------------

    def _evaluate(self, plan: StepPlan) -> dict[int, SequenceResult]:
        drafted = {request.sequence_id: request for request in plan.draft_requests}
        results: dict[int, SequenceResult] = {}
        for row in plan.decode:
            request = drafted.get(row.sequence_id)
            results[row.sequence_id] = self._decode(row, request.limit if request else 0)
        for rows in plan.prefill:
            self._prefill(rows)
            if rows.sampling is not None:
                results[rows.sequence_id] = SequenceResult(tuple(_choose(rows.sampling, 1)))
        return results

    def _prefill(self, rows: PrefillRows | MediaRows) -> None:
        count = tokens_of(rows)
        self.cells.append(rows.sequence_id, count)
        self.rows += count

    def _decode(self, row: DecodeRow, proposed: int) -> SequenceResult:
        drafts: Sequence[int] = row.drafts or _choose(row.sampling, proposed)
        self.rows += 1 + len(drafts)
        accepted = self._accepted(row, len(drafts))
        tokens = drafts[:accepted]
        if accepted < row.max_tokens:
            tokens = (*tokens, _choose(row.sampling, 1, ahead=accepted)[0])
        self.cells.append(row.sequence_id, len(tokens))
        return SequenceResult(tuple(tokens), len(drafts), accepted)

    def _accepted(self, row: DecodeRow, drafted: int) -> int:
        if self._acceptance is None:
            return 0
        seed, done = row.sampling.seed, row.sampling.history.output_tokens
        accepted = 0
        while accepted < min(drafted, row.max_tokens) and self._acceptance.accepts(seed, done + accepted):
            accepted += 1
        return accepted

    # --- the draft ----------------------------------------------------------

    def _draft_ms(self, plan: StepPlan) -> tuple[float, float]:
        """Milliseconds of drafting, and of filling the draft's memory."""
        curve = self.machine.draft
        if curve is None:
            return 0.0, 0.0
        drafting = sum(map(curve.predict, rows_by_depth(plan.draft_requests))) if plan.draft_requests else 0.0
        return drafting, curve.predict(sum(fill.tokens.size for fill in plan.draft_fills), logits=0)

    def _draft_held(self, plan: StepPlan, results: Mapping[int, SequenceResult]) -> dict[int, int]:
        held: dict[int, int] = {}
        for fill in plan.draft_fills:
            held[fill.sequence_id] = fill.position + fill.tokens.size
        for request in plan.draft_requests:
            known = request.tokens.size
            held[request.sequence_id] = min(known + request.limit - 1, known + results[request.sequence_id].accepted)
        for sequence_id, count in held.items():
            self.draft_cells.resize(sequence_id, count)
        return held

    def close(self) -> None:
        """There is nothing to free."""

    def __repr__(self) -> str:
        return f"SimulatedRunner({self.rows} rows evaluated, {self.cells.used} cells used)"


def _both(restored: RestoreSegment) -> tuple[tuple[int, int], tuple[int, int]]:
    start, stop = restored.start, restored.stop
    return (start.target, stop.target), (start.draft, stop.draft)


def _choose(sampling: SamplingContext, count: int, ahead: int = 0) -> tuple[int, ...]:
    """The next tokens of an answer, after `ahead` others."""
    done = sampling.history.output_tokens + ahead
    return tuple([hash((sampling.seed, done + index)) % VOCABULARY_SIZE for index in range(count)])
