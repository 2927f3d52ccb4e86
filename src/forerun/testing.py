"""A deterministic model with real KV semantics, and the naive oracle to compare any schedule with.

FakeRunner keeps cells the way llama.cpp does: positions in a sequence are consecutive, forks share cells, room is
finite, a failed decode leaves garbage behind. What it says next is a hash of the very cells a sequence holds, so any
fault in the bookkeeping (a stale cell, a wrong position, a missing token) changes the answer, and there is no rounding:
answers must be equal to the oracle's, always.

    scheduler = Scheduler(SchedulerConfig(n_ctx=64, max_num_seqs=4), vocabulary := FakeVocabulary())
    runner = FakeRunner(n_ctx=64)
    scheduler.add(request)
    while scheduler.has_work:
        plan = scheduler.schedule(now=0.0)
        for delta in scheduler.update(plan, runner.execute(plan)):
            ...
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.core.adapters import NO_CONTENTS, AdapterSet, scope_of
from forerun.core.costs import StepCosts
from forerun.core.history import TokenHistory
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.prefix import PromptCheckpointState
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.race import uniform
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.sampling import BrokenLogitsError, SamplingContext, TokenDistribution, draft_token, sample
from forerun.core.segment import (
    SegmentHeader,
    SegmentSizes,
    SegmentStore,
    StoredSegment,
    StoreEvent,
    StoreEventKind,
)
from forerun.core.speculation import rows_by_depth
from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    DraftRequest,
    DropSegment,
    FailureKind,
    FetchSegment,
    ForkSequence,
    KvOperation,
    MediaRows,
    PersistSegment,
    Proposal,
    RemoveSegment,
    RestoreSegment,
    SequenceResult,
    StepFailure,
    StepPlan,
    StepResult,
    StepTimes,
    StoreSegment,
    TruncateSequence,
    Vocabulary,
)
from forerun.core.verification import Verify, verify

_LOGIT_SPREAD = 6.0
_GARBAGE = 10**6
_COPY = -1
"""Copies have ids below 0."""


class FakeVocabulary:
    """A handful of tokens. By default: "a", "b", the end of a turn, and the two bytes of "é"."""

    def __init__(
        self, pieces: Sequence[bytes] = (b"a", b"b", b"", b"\xc3", b"\xa9"), end_tokens: Iterable[int] = (2,)
    ) -> None:
        self._pieces = tuple(pieces)
        self._end_tokens = frozenset(end_tokens)

    @property
    def size(self) -> int:
        return len(self._pieces)

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._end_tokens

    def piece(self, token: int) -> bytes:
        return self._pieces[token]


class ManualClock:
    """A clock that moves when told to. Call it for the time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeMemoryError(Exception):
    """What the fake memory refuses; the message says why."""


@dataclass(slots=True, eq=False)
class _Cell:
    position: int
    digest: int
    owners: int = 1


class FakeMemory:
    """KV cells of one context. Sequences hold rows of shared cells, positions consecutive.

    `kind` says where they can be cut. A state refuses; behind a sliding window cells are gone as soon as they may be,
    and a cut that would need them is accepted and makes everything after it wrong, as in llama.cpp.
    """

    def __init__(self, capacity: int, kind: MemoryKind = DENSE) -> None:
        self.capacity = capacity
        self.kind = kind
        self.used = 0
        self._first: dict[int, int] = {}
        self._sequences: dict[int, list[_Cell]] = {}
        self._ends: dict[int, int] = {}

    def next_position(self, sequence_id: int) -> int:
        """Native position that must come next: `seq_pos_max + 1`."""
        return self._ends.get(sequence_id, 0)

    def held(self, sequence_id: int) -> int:
        """Cells of a sequence."""
        return len(self._sequences.get(sequence_id, ()))

    def digest(self, sequence_id: int) -> int:
        """A hash of everything the sequence holds, in order."""
        cells = self._sequences.get(sequence_id)
        return cells[-1].digest if cells else 0

    def held_from(self) -> dict[int, int]:
        """First position that is still there, of every sequence whose sliding window has lost some."""
        return {sequence_id: first for sequence_id, first in self._first.items() if first > 0}

    def append(
        self,
        sequence_id: int,
        codes: Iterable[int],
        position: int,
        native_positions: int | None = None,
        batch_from: int | None = None,
    ) -> None:
        """Evaluate one token a code, from `position` on; media codes share `native_positions` positions.

        `batch_from`: where the sequence's rows in this decode begin, if not here.
        """
        codes = list(codes)
        if position != self.next_position(sequence_id):
            raise FakeMemoryError(
                f"sequence {sequence_id} goes on at position {self.next_position(sequence_id)}, not at {position}"
            )
        if self.used + len(codes) > self.capacity:
            raise FakeMemoryError(f"{len(codes)} cells wanted, {self.capacity - self.used} of {self.capacity} free")
        extent = len(codes) if native_positions is None else native_positions
        if self.kind.window:  # masked for the first new row, so free for others
            begin = position if batch_from is None else batch_from
            self._first[sequence_id] = max(self._first.get(sequence_id, 0), begin - self.kind.window + 1)
        cells = self._sequences.setdefault(sequence_id, [])
        digest = self.digest(sequence_id)
        for index, code in enumerate(codes):
            at = position + min(index, extent - 1)
            digest = next_digest(digest, code, at)
            cells.append(_Cell(at, digest))
        self._ends[sequence_id] = position + extent
        self.used += len(codes)

    def fork(self, source_id: int, target_id: int, position: int) -> None:
        """llama_memory_seq_cp of [0, position) into an empty sequence: metadata only."""
        if self._sequences.get(target_id):
            raise FakeMemoryError(f"fork into sequence {target_id}, which is not empty")
        if self.kind.has_state and 0 < position < self.next_position(source_id):
            raise FakeMemoryError(f"sequence {source_id} cannot be forked at {position}")
        shared = [cell for cell in self._sequences.get(source_id, ()) if cell.position < position]
        for cell in shared:
            cell.owners += 1
        self._sequences[target_id] = shared
        self._ends[target_id] = min(position, self.next_position(source_id))
        self._first[target_id] = self._first.get(source_id, 0)
        if position < self.next_position(source_id):
            self._spoil_if_unsound(target_id, position)

    def truncate(self, sequence_id: int, position: int) -> None:
        """llama_memory_seq_rm of [position, end)."""
        cells = self._sequences.get(sequence_id, [])
        if not cells or self.next_position(sequence_id) <= position:
            return
        if position and self.kind.has_state:
            raise FakeMemoryError(f"sequence {sequence_id} cannot be truncated")
        while cells and cells[-1].position >= position:
            self._drop(cells.pop())
        self._ends[sequence_id] = position
        self._spoil_if_unsound(sequence_id, position)

    def is_sound(self, sequence_id: int, position: int) -> bool:
        """Whether all cells are there that a token at `position` looks at."""
        return not self.kind.window or self._first.get(sequence_id, 0) <= max(0, position - self.kind.window + 1)

    def export(self, sequence_id: int, start: int, stop: int) -> NDArray[np.int64]:
        """The cells at positions [start, stop): where from, then position, digest and the digest before, of each.

        A state belongs to the end of a sequence: with one, `stop` must be there.
        """
        cells = self._sequences.get(sequence_id, [])
        if self.kind.has_state and stop != self.next_position(sequence_id):
            raise FakeMemoryError(f"the state of sequence {sequence_id} at {stop} is not known any more")
        before = [0, *(cell.digest for cell in cells)]
        rows = [(c.position, c.digest, before[i]) for i, c in enumerate(cells) if start <= c.position < stop]
        first = max(self._first.get(sequence_id, 0), start)
        return np.array([(start, stop, first), *rows], np.int64)

    def restore(self, sequence_id: int, exported: NDArray[np.int64], start: int, stop: int) -> None:
        """Give a sequence that holds what lies before `start` the exported cells up to `stop`."""
        begin, end, first = exported[0].tolist()
        if self.next_position(sequence_id) != start or not begin <= start <= stop <= end:
            raise FakeMemoryError(f"sequence {sequence_id} cannot be given [{start}, {stop}) of [{begin}, {end})")
        if self.kind.has_state and (start, stop) != (begin, end):
            raise FakeMemoryError(f"a state cannot be cut: [{start}, {stop}) of [{begin}, {end})")
        rows = [row for row in exported[1:].tolist() if start <= row[0] < stop]
        if self.used + len(rows) > self.capacity:
            raise FakeMemoryError(f"{len(rows)} cells wanted, {self.capacity - self.used} of {self.capacity} free")
        follows = not rows or rows[0][2] == self.digest(sequence_id)
        cells = self._sequences.setdefault(sequence_id, [])
        cells.extend(_Cell(position, digest if follows else _GARBAGE) for position, digest, _ in rows)
        self._ends[sequence_id] = stop
        self.used += len(rows)
        if self.kind.window and first > begin:
            self._first[sequence_id] = max(self._first.get(sequence_id, 0), min(first, stop))

    def _spoil_if_unsound(self, sequence_id: int, position: int) -> None:
        """Cells that the next token looks at are gone: whatever is computed from here on is wrong."""
        if not position:
            self._first.pop(sequence_id, None)
        elif not self.is_sound(sequence_id, position):
            cells = self._sequences[sequence_id]
            spoilt = cells.pop()
            self._drop(spoilt)
            cells.append(_Cell(spoilt.position, _GARBAGE))
            self.used += 1

    def clear(self, sequence_id: int) -> None:
        self.truncate(sequence_id, 0)

    def _drop(self, cell: _Cell) -> None:
        cell.owners -= 1
        if not cell.owners:
            self.used -= 1

    def __repr__(self) -> str:
        held = {key: len(cells) for key, cells in self._sequences.items() if cells}
        return f"FakeMemory({self.used} of {self.capacity} cells: {held})"


def next_digest(digest: int, code: int, position: int) -> int:
    """Hash of a sequence after one more token."""
    return hash((digest, code, position)) & (2**63 - 1)


def adapted(codes: Iterable[int], adapters: AdapterSet, contents: Mapping[str, str] = NO_CONTENTS) -> list[int]:
    """What the cells of some tokens hold where they are evaluated with adapters. `contents`: of each adapter."""
    if not adapters:
        return list(codes)
    salt = zlib.crc32(scope_of("", adapters, contents).encode())
    return [hash((salt, code)) for code in codes]


def media_codes(segment: PromptSegment) -> list[int]:
    """What the cells of a media span hold."""
    span = segment.media_span
    assert span is not None
    seed = zlib.crc32(span.identity.encode()) + 10**7
    return [seed + index for index in range(span.logical_tokens)]


def fake_logits(digest: int, vocabulary_size: int) -> NDArray[np.float32]:
    """The fake model: logits of shape (vocabulary,) that depend on the digest alone."""
    return np.array([_LOGIT_SPREAD * uniform(digest, token) for token in range(vocabulary_size)], np.float32)


class FakeDrafter:
    """A draft model with its own memory. `quality`: how often it thinks what the target thinks, 0 to 1."""

    name = "draft"

    def __init__(self, n_ctx: int, vocabulary_size: int, quality: float = 0.5, kind: MemoryKind = DENSE) -> None:
        self.memory = FakeMemory(n_ctx, kind)
        self.quality = quality
        self.rows = 0
        """Rows evaluated so far."""
        self._size = vocabulary_size

    def evaluate(self, sequence_id: int, tokens: Iterable[int], position: int) -> None:
        codes = [int(token) for token in tokens]
        self.memory.append(sequence_id, codes, position)
        self.rows += len(codes)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Proposal:
        self.evaluate(request.sequence_id, request.tokens[request.held :], request.held)
        proposed: list[int] = []
        drawn_from: list[TokenDistribution] = []
        while True:
            token, distribution = self._choose(request, proposed)
            proposed.append(token)
            if distribution is not None and request.wants_distributions:
                drawn_from.append(distribution)
            if len(proposed) == request.limit:
                return Proposal(tuple(proposed), drawn_from=tuple(drawn_from))
            if len(proposed) == 1:
                _remember(self.memory, request.sequence_id)
            self.evaluate(request.sequence_id, proposed[-1:], request.tokens.size + len(proposed) - 1)

    def _choose(self, request: DraftRequest, proposed: Sequence[int]) -> tuple[int, TokenDistribution | None]:
        digest = self.memory.digest(request.sequence_id)
        if uniform(digest, 10**6) >= self.quality:
            digest += 1
        logits = fake_logits(digest, self._size)
        if request.sampling is None:
            return int(logits.argmax()), None
        return draft_token(logits, request.sampling, proposed)


class FakeStore:
    """Implements core.segment.SegmentStore in two dicts.

    `faults` is asked with "put", "persist", "fetch" or "get" and the key, and says what goes wrong; events come with
    the next `take_events` but `delay`. `scan` gives what is on the fake disk, for an engine that starts again.
    """

    def __init__(
        self, capacity: int = 2**40, faults: Callable[[str, str], bool] = lambda _kind, _key: False, delay: int = 0
    ) -> None:
        self.host: dict[str, tuple[SegmentHeader, PromptCheckpointState]] = {}
        self.disk: dict[str, tuple[SegmentHeader, PromptCheckpointState]] = {}
        self.capacity = capacity
        self.faults = faults
        self.is_closed = False
        self._delay = delay
        self._calls = 0
        self._pending: list[tuple[int, StoreEvent]] = []
        self._fetched: dict[str, tuple[SegmentHeader, PromptCheckpointState]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes in host memory."""
        return sum(len(state.state) for _, state in self.host.values())

    @property
    def in_transit(self) -> set[str]:
        """Keys of which nobody has been told yet what became of them."""
        return {event.key for _, event in self._pending}

    def put(self, header: SegmentHeader, state: PromptCheckpointState) -> int:
        if self.faults("put", header.key) or self.nbytes + len(state.state) > self.capacity:
            return 0
        self.host[header.key] = (header, state)
        return len(state.state)

    def get(self, key: str) -> PromptCheckpointState:
        if self.faults("get", key):
            raise KeyError(key)
        return self.host[key][1]

    def drop(self, key: str) -> None:
        self.host.pop(key, None)
        self._fetched.pop(key, None)
        self._forget_events(key, {StoreEventKind.FETCHED, StoreEventKind.FETCH_FAILED})

    def persist(self, key: str) -> None:
        if key not in self.host or self.faults("persist", key):
            self._later(StoreEvent(StoreEventKind.PERSIST_FAILED, key))
        else:
            self.disk[key] = self.host[key]
            self._later(StoreEvent(StoreEventKind.PERSISTED, key, len(self.disk[key][1].state)))

    def fetch(self, key: str) -> None:
        if key not in self.disk or self.faults("fetch", key):
            self.disk.pop(key, None)
            self._later(StoreEvent(StoreEventKind.FETCH_FAILED, key))
        else:
            self._fetched[key] = self.disk[key]
            self._later(StoreEvent(StoreEventKind.FETCHED, key, len(self.disk[key][1].state)))

    def remove(self, key: str) -> None:
        self.disk.pop(key, None)
        self._forget_events(key, {StoreEventKind.PERSISTED, StoreEventKind.PERSIST_FAILED})

    def _forget_events(self, key: str, kinds: set[StoreEventKind]) -> None:
        self._pending = [(due, one) for due, one in self._pending if one.key != key or one.kind not in kinds]

    def _later(self, event: StoreEvent) -> None:
        self._pending.append((self._calls + self._delay, event))

    def take_events(self) -> list[StoreEvent]:
        self._calls += 1
        done = [event for due, event in self._pending if due < self._calls]
        self._pending = [(due, event) for due, event in self._pending if due >= self._calls]
        for event in done:
            fetched = self._fetched.pop(event.key, None) if event.kind is StoreEventKind.FETCHED else None
            if fetched is not None:
                self.host[event.key] = fetched
        return done

    def wait(self, seconds: float) -> None:  # noqa: ARG002
        self._calls += self._delay

    def restarted(self) -> FakeStore:
        """A store after kill -9: what was on disk is there, nothing else."""
        fresh = FakeStore(self.capacity, self.faults, self._delay)
        fresh.disk = dict(self.disk)
        return fresh

    def scan(self) -> list[StoredSegment]:
        """What is on disk, as a store that starts finds it."""
        sizes = [(header, len(state.state)) for header, state in self.disk.values()]
        return [StoredSegment(header, size, size, float(index)) for index, (header, size) in enumerate(sizes)]

    def close(self) -> None:
        self.is_closed = True


FAKE_SIZES = SegmentSizes(per_segment=3 * 24, per_token=24, per_draft_token=24)
"""What FakeRunner's segments take at most: three numbers of 8 bytes for every cell, and for each range of them."""


def _packed(*ranges: NDArray[np.int64]) -> bytes:
    """Exported cells of target and draft as one state: how many rows the first has, then the rows of both."""
    count = np.array([(len(ranges[0]), 0, 0)], np.int64)
    return np.concatenate((count, *ranges)).tobytes()


def _unpacked(state: bytes | memoryview) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.frombuffer(state, np.int64).reshape(-1, 3)
    split = 1 + int(rows[0, 0])
    return rows[1:split], rows[split:]


FaultSchedule = Callable[[StepPlan], StepFailure | None]


class FakeRunner:
    """Performs plans on the fake model.

    `faults` is asked before each step; what it returns fails the step after some garbage was written, as a native
    decode that breaks in the middle would. `kind` is the target's memory. Steps take `seconds_per_step`, or with
    `costs` what those say, draft included, so that speed can be simulated. `verify` may be a SyntheticAcceptance's.
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
    ) -> None:
        self.memory = FakeMemory(n_ctx, kind)
        self.adapters = adapters
        """Those there are, each with its content: what is evaluated with one depends on that."""
        self.store = store
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
        self._size = vocabulary_size
        self._seconds = seconds_per_step
        self._costs = costs
        self._verify = verify

    def execute(self, plan: StepPlan) -> StepResult:
        self._stored: dict[str, int] = {}
        self._stored_from: dict[str, int] = {}
        self._unrestorable: list[str] = []
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
        )

    def _execute(self, plan: StepPlan) -> StepResult:
        try:
            self._apply_all(plan.operations)
            failure = self.faults(plan) if self.faults else None
            if failure is not None:
                self._leave_garbage(plan)
                return StepResult(self._seconds, failure=failure, held_from=self.memory.held_from())
            cells, rows, replayed = self.memory.used, self.rows, self.replayed
            results = self._evaluate(plan)
            held = self._draft_held(plan, results)
            held_from = self.memory.held_from()
            if self._costs is None:
                return StepResult(self._seconds, results, held, held_from=held_from)
            times = _simulated(self._costs, plan, self.rows - rows, cells)
            fills = [fill.tokens.size for fill in plan.draft_fills]
            filling = self._costs.draft.predict(sum(fills)) / 1e3 if fills and self._costs.draft else 0.0
            replaying = self._costs.target.predict(self.replayed - replayed, cells) / 1e3
            elapsed = times.target + times.draft + filling + replaying
            return StepResult(elapsed, results, held, times=times, held_from=held_from)
        except (FakeMemoryError, BrokenLogitsError) as error:
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
            return PromptCheckpointState.target(_packed(target))
        start = header.start.logical_tokens
        has_draft = header.draft_stop > start
        draft = self.drafter.memory.export(sequence_id, start, header.draft_stop) if has_draft else target[:0]
        return PromptCheckpointState.speculative(_packed(target, draft))

    def _restore(self, operation: RestoreSegment, store: SegmentStore) -> None:
        sequence_id, start, stop = operation.sequence_id, operation.start, operation.stop
        try:
            target, draft = _unpacked(store.get(operation.key).state)
            self.memory.restore(sequence_id, target, start.target, stop.target)
            self.restored += stop.target - start.target
            if self.drafter is not None and stop.draft > start.draft:
                self.drafter.memory.restore(sequence_id, draft, start.draft, stop.draft)
        except (KeyError, FakeMemoryError) as error:
            self._unrestorable.append(operation.key)
            raise FakeMemoryError(f"segment {operation.key} cannot be restored: {error}") from error

    def _leave_garbage(self, plan: StepPlan) -> None:
        for sequence_id in plan.sequence_ids():
            if self.memory.used < self.memory.capacity:
                self.memory.append(sequence_id, [_GARBAGE], self.memory.next_position(sequence_id))

    def _evaluate(self, plan: StepPlan) -> dict[int, SequenceResult]:
        proposals = self._draft(plan)
        self._applied = plan.adapters
        results = {row.sequence_id: self._decode(row, proposals) for row in plan.decode}
        for rows in plan.prefill:
            if isinstance(rows, MediaRows):
                codes, extent = media_codes(rows.media), rows.media.native_positions
            else:
                codes, extent = rows.tokens.tolist(), rows.tokens.size
            self.memory.append(rows.sequence_id, self._adapted(codes), rows.position, extent)
            self.rows += len(codes)
            if rows.sampling is not None:
                verified = self._verify(self._logits(rows.sequence_id)[None, :], (), rows.sampling, 1, ())
                results[rows.sequence_id] = SequenceResult(verified.tokens, logprobs=verified.logprobs)
        return results

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

    def _decode(self, row: DecodeRow, proposals: dict[int, Proposal]) -> SequenceResult:
        proposal = proposals.get(row.sequence_id) or Proposal(row.drafts)
        drafts = proposal.tokens
        logits = np.empty((len(drafts) + 1, self._size), np.float32)
        _remember(self.memory, row.sequence_id)
        for index, token in enumerate((row.token, *drafts)):
            self.memory.append(row.sequence_id, self._adapted([token]), row.position + index, batch_from=row.position)
            logits[index] = self._logits(row.sequence_id)
        self.rows += len(logits)
        verified = self._verify(logits, drafts, row.sampling, row.max_tokens, proposal.drawn_from)
        kept = len(verified.tokens)
        if _take_back(self.memory, row.sequence_id, row.position + kept):
            self.memory.append(row.sequence_id, self._adapted([row.token, *verified.tokens[:-1]]), row.position)
            self.replayed += kept
        return SequenceResult(verified.tokens, len(drafts), verified.accepted, verified.logprobs)

    def _draft_held(self, plan: StepPlan, results: dict[int, SequenceResult]) -> dict[int, int]:
        """Cut rejected tokens from the draft's memory; what it then holds, by sequence id."""
        if self.drafter is None:
            return {}
        memory = self.drafter.memory
        for request in plan.draft_requests:
            keep = request.tokens.size + results[request.sequence_id].accepted
            _take_back(memory, request.sequence_id, keep)
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


def _remember(memory: FakeMemory, sequence_id: int) -> None:
    """Keep a copy of a sequence where its memory cannot be cut."""
    if memory.kind.has_state:
        memory.clear(_COPY - sequence_id)
        memory.fork(sequence_id, _COPY - sequence_id, memory.next_position(sequence_id))


def _take_back(memory: FakeMemory, sequence_id: int, position: int) -> bool:
    """Drop what lies from `position` on. True where that meant going back to the copy, which holds less."""
    copy = _COPY - sequence_id
    goes_back = memory.kind.has_state and memory.next_position(sequence_id) > position
    if goes_back:
        memory.clear(sequence_id)
        memory.fork(copy, sequence_id, memory.next_position(copy))
    elif memory.kind.window and not memory.is_sound(sequence_id, position):
        memory.clear(sequence_id)
    else:
        memory.truncate(sequence_id, position)
    if memory.kind.has_state:
        memory.clear(copy)
    return goes_back


def _simulated(costs: StepCosts, plan: StepPlan, rows: int, cells: int) -> StepTimes:
    draft_ms = 0.0
    if plan.draft_requests and costs.draft is not None:
        draft_ms = sum(costs.draft.predict(count) for count in rows_by_depth(plan.draft_requests))
    return StepTimes(costs.target.predict(rows, cells) / 1e3, draft_ms / 1e3)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request must give, whatever happens around it."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason


def naive_answer(
    prompt: PromptLayout,
    params: SamplingParams,
    vocabulary: Vocabulary,
    n_ctx: int,
    adapters: Mapping[str, str] = NO_CONTENTS,
) -> Answer:
    """The oracle: one request alone, token by token, no cache, no draft, no chunks; text decoded afresh each time.

    `adapters`: those there are, with contents.
    """
    digest = position = 0
    applied = params.adapter_set
    for segment in prompt.segments:
        codes = media_codes(segment) if segment.is_media else segment.tokens.tolist()
        for index, code in enumerate(adapted(codes, applied, adapters)):
            digest = next_digest(digest, code, position + min(index, segment.native_positions - 1))
        position += segment.native_positions
    history = TokenHistory(prompt)
    context = SamplingContext(params, params.seed or 0, vocabulary.end_tokens, history)
    limit = n_ctx + 1 - prompt.logical_tokens
    limit = limit if params.max_tokens is None else min(limit, params.max_tokens)
    output: list[int] = []
    shown: list[int] = []
    while True:
        token = sample(fake_logits(digest, vocabulary.size), context)
        output.append(token)
        history.append(token)
        if token in context.end_tokens:
            return Answer(tuple(output), _text(shown, vocabulary), FinishReason.STOP)
        shown.append(token)
        text = _text(shown, vocabulary)
        ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in params.stop if stop in text]
        if ends:
            return Answer(tuple(output), text[: min(ends)[1]], FinishReason.STOP)
        if len(output) == limit:
            return Answer(tuple(output), text, FinishReason.LENGTH)
        (code,) = adapted([token], applied, adapters)
        digest = next_digest(digest, code, position)
        position += 1


def _text(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    return b"".join(vocabulary.piece(token) for token in tokens).decode("utf-8", "ignore")
