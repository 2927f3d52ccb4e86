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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.core.costs import StepCosts
from forerun.core.history import TokenHistory
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.race import uniform
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.sampling import BrokenLogitsError, SamplingContext, TokenDistribution, draft_token, sample
from forerun.core.speculation import rows_by_depth
from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    DraftRequest,
    FailureKind,
    ForkSequence,
    KvOperation,
    MediaRows,
    Proposal,
    SequenceResult,
    StepFailure,
    StepPlan,
    StepResult,
    StepTimes,
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
    ) -> None:
        self.memory = FakeMemory(n_ctx, kind)
        self.drafter = drafter
        self.faults = faults
        self.rows = 0
        """Target rows evaluated so far, those evaluated again after a rejection left out."""
        self.replayed = 0
        """Rows evaluated again after a rejection."""
        self.is_closed = False
        self._size = vocabulary_size
        self._seconds = seconds_per_step
        self._costs = costs
        self._verify = verify

    def execute(self, plan: StepPlan) -> StepResult:
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
        memories = [self.memory, *([self.drafter.memory] if self.drafter else [])]
        for index, memory in enumerate(memories):
            match operation:
                case ClearSequence(sequence_id):
                    memory.clear(sequence_id)
                case TruncateSequence(sequence_id, position):
                    memory.truncate(sequence_id, position.draft if index else position.target)
                case ForkSequence(source_id, target_id, position):
                    memory.fork(source_id, target_id, position.draft if index else position.target)

    def _leave_garbage(self, plan: StepPlan) -> None:
        for sequence_id in plan.sequence_ids():
            if self.memory.used < self.memory.capacity:
                self.memory.append(sequence_id, [_GARBAGE], self.memory.next_position(sequence_id))

    def _evaluate(self, plan: StepPlan) -> dict[int, SequenceResult]:
        proposals = self._draft(plan)
        results = {row.sequence_id: self._decode(row, proposals) for row in plan.decode}
        for rows in plan.prefill:
            if isinstance(rows, MediaRows):
                codes, extent = media_codes(rows.media), rows.media.native_positions
            else:
                codes, extent = rows.tokens.tolist(), rows.tokens.size
            self.memory.append(rows.sequence_id, codes, rows.position, extent)
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
            self.memory.append(row.sequence_id, [token], row.position + index, batch_from=row.position)
            logits[index] = self._logits(row.sequence_id)
        self.rows += len(logits)
        verified = self._verify(logits, drafts, row.sampling, row.max_tokens, proposal.drawn_from)
        kept = len(verified.tokens)
        if _take_back(self.memory, row.sequence_id, row.position + kept):
            self.memory.append(row.sequence_id, [row.token, *verified.tokens[:-1]], row.position)
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


def naive_answer(prompt: PromptLayout, params: SamplingParams, vocabulary: Vocabulary, n_ctx: int) -> Answer:
    """The oracle: one request alone, token by token, no cache, no draft, no chunks; text decoded afresh each time."""
    digest = position = 0
    for segment in prompt.segments:
        codes = media_codes(segment) if segment.is_media else segment.tokens.tolist()
        for index, code in enumerate(codes):
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
        digest = next_digest(digest, token, position)
        position += 1


def _text(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    return b"".join(vocabulary.piece(token) for token in tokens).decode("utf-8", "ignore")
