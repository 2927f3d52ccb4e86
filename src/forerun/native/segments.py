"""Performs the segment operations of a plan: KV out of both memories into the store, and back."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import SegmentHeader, SegmentStore
from forerun.core.step import (
    DropSegment,
    FailureKind,
    FetchSegment,
    PersistSegment,
    RemoveSegment,
    RestoreSegment,
    SegmentOperation,
    StoreSegment,
)
from forerun.native.context import LlamaContext, NativeStepError
from forerun.native.drafter import LlamaDrafter
from forerun.native.packing import Bytes, Memory, Part, pack, unpack
from forerun.native.runs import Run, Runs

_log = logging.getLogger("forerun.native")


@dataclass(slots=True)
class Moved:
    """What a step's segment operations came to; see the fields of StepResult."""

    stored: dict[str, int] = field(default_factory=dict)
    stored_from: dict[str, int] = field(default_factory=dict)
    unrestorable: dict[str, None] = field(default_factory=dict)
    restored: dict[int, None] = field(default_factory=dict)
    """Sequences."""
    storing: float = 0.0
    restoring: float = 0.0


class Segments:
    """Moves segments between both contexts and `store`, through the last id of each context.

    With a draft model (or an MTP head) target, draft and what the drafter keeps beside its memory are one
    `PromptCheckpointState.speculative`; packing.py says how they lie in it. Used by the runner's thread.
    """

    def __init__(self, context: LlamaContext, drafter: LlamaDrafter | None, store: SegmentStore) -> None:
        self.store = store
        self._target = Runs(context)
        self._drafter = drafter
        self._draft = Runs(drafter.context) if drafter else None
        self.moved = Moved()
        """What was done since `begin_step`."""

    def begin_step(self) -> None:
        self.moved = Moved()

    def perform(self, operation: SegmentOperation) -> None:
        """Raises NativeStepError where a segment cannot be restored; both memories of the sequence are then empty."""
        match operation:
            case StoreSegment(sequence_id, header):
                self._store(sequence_id, header)
            case RestoreSegment():
                self._restore(operation)
            case DropSegment(key):
                self.store.drop(key)
            case PersistSegment(key):
                self.store.persist(key)
            case FetchSegment(key):
                self.store.fetch(key)
            case RemoveSegment(key):
                self.store.remove(key)

    # --- out ---

    def _store(self, sequence_id: int, header: SegmentHeader) -> None:
        """A failure costs the copy only."""
        started, self.moved.stored[header.key] = perf_counter(), 0
        try:
            header, state = self._taken(sequence_id, header)
            self.moved.stored[header.key] = self.store.put(header, state)
        except (NativeStepError, MemoryError, OSError) as error:
            _log.warning("segment %s of sequence %d is not stored: %s", header.key, sequence_id, error)
        if header.whole_from > header.start.native_position:
            self.moved.stored_from[header.key] = header.whole_from
        self.moved.storing += perf_counter() - started

    def _taken(self, sequence_id: int, header: SegmentHeader) -> tuple[SegmentHeader, PromptCheckpointState]:
        """A segment's bytes, and its header as it turned out to be. Raises NativeStepError."""
        run = (header.start.native_position, header.stop.native_position)
        if not self._target.holds(sequence_id, run):
            end = self._target.end(sequence_id)
            raise NativeStepError(FailureKind.FAILED, f"a run {run} is not in the {end} positions it holds")
        draft_run = (header.start.text_tokens, header.draft_stop)
        if self._draft is None or not self._draft.holds(sequence_id, draft_run):
            draft_run = (draft_run[0], draft_run[0])
        buffer, whole_from = self._packed(sequence_id, run, draft_run)
        header = replace(header, draft_stop=draft_run[1], whole_from=whole_from if whole_from > run[0] else 0)
        of_kind = PromptCheckpointState.target if self._draft is None else PromptCheckpointState.speculative
        return header, of_kind(buffer.data.toreadonly())

    def _packed(self, sequence_id: int, run: Run, draft_run: Run) -> tuple[Bytes, int]:
        """The bytes, each copied once, and from where the target's are whole. An empty `draft_run` is left out."""
        parts = [
            Part(Memory.TARGET, *piece, self._target.size(sequence_id, piece)) for piece in self._target.split(run)
        ]
        tail = np.empty(0, np.uint8)
        if self._draft is not None and self._drafter is not None and draft_run[0] < draft_run[1]:
            pieces = self._draft.split(draft_run)
            parts += [Part(Memory.DRAFT, *piece, self._draft.size(sequence_id, piece)) for piece in pieces]
            tail = self._drafter.tail(sequence_id, draft_run[1])
        if tail.size:
            parts.append(Part(Memory.TAIL, draft_run[1], draft_run[1], tail.size))
        buffer, places = pack(parts)
        whole_from = run[0]
        for part, place in zip(parts, places, strict=True):
            piece = (part.start, part.stop)
            if part.memory is Memory.TARGET:
                first = self._target.read(sequence_id, piece, place)
                whole_from = first if first > part.start else whole_from
            elif part.memory is Memory.DRAFT and self._draft is not None:
                self._draft.read(sequence_id, piece, place)
            else:
                place[:] = tail
        return buffer, whole_from

    # --- back ---

    def _restore(self, operation: RestoreSegment) -> None:
        """Both memories of the sequence are empty where this fails. Raises NativeStepError."""
        started, sequence_id = perf_counter(), operation.sequence_id
        self.moved.restored[sequence_id] = None
        try:
            if not self._target.ends_at(sequence_id, operation.start.target):
                end = self._target.end(sequence_id)
                message = f"sequence {sequence_id} holds {end} positions, a segment from {operation.start.target} on"
                raise NativeStepError(FailureKind.FAILED, f"{message} cannot be restored")
            self._give(operation)
        except NativeStepError:
            self._clear(sequence_id)
            raise
        finally:
            self.moved.restoring += perf_counter() - started

    def _give(self, operation: RestoreSegment) -> None:
        key, sequence_id = operation.key, operation.sequence_id
        try:
            parts = unpack(self.store.get(key).state)
            self._give_target(operation, parts)
        except (KeyError, ValueError, NativeStepError) as error:
            kind = error.kind if isinstance(error, NativeStepError) else FailureKind.FAILED
            if kind is not FailureKind.NO_ROOM:
                self.moved.unrestorable[key] = None
            raise NativeStepError(kind, f"segment {key} for sequence {sequence_id}: {error!r}") from error
        try:
            self._give_draft(operation, parts)
        except NativeStepError as error:
            _log.info("draft model: segment %s is not restored: %s; going on with fewer proposals", key, error)
            self._clear_draft(sequence_id)

    def _give_target(self, operation: RestoreSegment, parts: list[tuple[Part, Bytes]]) -> None:
        for part, state in parts:
            if part.memory is Memory.TARGET:
                wanted = _overlap(part, operation.start.target, operation.stop.target)
                _give_part(self._target, operation.sequence_id, part, state, wanted)
        if not self._target.ends_at(operation.sequence_id, operation.stop.target):
            end = self._target.end(operation.sequence_id)
            raise ValueError(f"it ends at {end} instead of {operation.stop.target}")

    def _give_draft(self, operation: RestoreSegment, parts: list[tuple[Part, Bytes]]) -> None:
        """As far as it goes on from what the draft's memory holds."""
        if self._draft is None or self._drafter is None:
            return
        sequence_id = operation.sequence_id
        for part, state in parts:
            end = self._draft.end(sequence_id)
            if part.memory is Memory.DRAFT and end == max(part.start, operation.start.draft):
                wanted = _overlap(part, operation.start.draft, operation.stop.draft)
                _give_part(self._draft, sequence_id, part, state, wanted)
            elif part.memory is Memory.TAIL and end == part.stop:
                self._drafter.restore_tail(sequence_id, part.stop, state)

    def draft_held(self) -> dict[int, int]:
        """What the draft's memory holds of each sequence that got something."""
        if self._drafter is None:
            return {}
        return {sequence_id: self._drafter.held(sequence_id) for sequence_id in self.moved.restored}

    def check_windows(self) -> None:
        """Sequences that got something go on from where they end, so their windows must be whole there.

        A draft's is emptied where it is not; where the target's is not both are, and NativeStepError is raised.
        """
        broken = [sequence_id for sequence_id in self.moved.restored if not _is_sound(self._target, sequence_id)]
        for sequence_id in broken:
            self._clear(sequence_id)
        for sequence_id in self.moved.restored:
            if self._draft is not None and not _is_sound(self._draft, sequence_id):
                self._clear_draft(sequence_id)
        if broken:
            raise NativeStepError(FailureKind.FAILED, f"the windows of sequences {broken} were restored with gaps")

    def _clear(self, sequence_id: int) -> None:
        self._target.context.clear_sequence(sequence_id)
        self._clear_draft(sequence_id)

    def _clear_draft(self, sequence_id: int) -> None:
        if self._drafter is not None:
            self._drafter.clear(sequence_id)

    def __repr__(self) -> str:
        return f"Segments({self._target!r}, draft {self._draft!r}, {self.store!r})"


def _overlap(part: Part, start: int, stop: int) -> Run:
    return max(part.start, start), min(part.stop, stop)


def _give_part(runs: Runs, sequence_id: int, part: Part, state: Bytes, wanted: Run) -> None:
    """Nothing where no part is wanted, or a state would have to be cut."""
    run = (part.start, part.stop)
    if wanted == run or (wanted[0] < wanted[1] and not runs.context.memory.has_state):
        runs.write(sequence_id, run, state, wanted)


def _is_sound(runs: Runs, sequence_id: int) -> bool:
    return runs.context.can_cut(sequence_id, runs.end(sequence_id))
