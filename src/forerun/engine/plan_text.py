"""A plan in words, without what was said: equal plans of two runs read the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from forerun.core.encoding import EncodeMedia
from forerun.core.prompt import SpeculativePosition
from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    ForkSequence,
    KvOperation,
    MediaRows,
    PrefillRows,
    RestoreSegment,
    StepPlan,
    StoreSegment,
    TruncateSequence,
)

_DIGITS = 12


class SegmentNumbers:
    """Stored segments by when they were first heard of: keys depend on tokens, numbers do not."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._keys: list[str] = []

    def of(self, key: str) -> int:
        """The number of a key, a new one where it is new."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
        return number

    def key(self, number: int) -> str:
        """The key of a number. Raises IndexError."""
        return self._keys[number]


def plan_lines(plan: StepPlan, numbers: SegmentNumbers) -> list[str]:
    """Everything a plan decides, a line each."""
    return list(_lines(plan, numbers))


def plan_digest(lines: list[str]) -> str:
    """Tells plans apart."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_DIGITS]


def _lines(plan: StepPlan, numbers: SegmentNumbers) -> Iterator[str]:
    for operation in plan.operations:
        yield _operation(operation, numbers)
    for wanted in plan.media:
        yield "encode" if isinstance(wanted, EncodeMedia) else "forget what is encoded"
    if plan.adapters:
        yield f"adapters {dict(plan.adapters)}"
    for fill in plan.draft_fills:
        yield f"fill {fill.sequence_id} at {fill.position}: {fill.tokens.size} tokens"
    for request in plan.draft_requests:
        way = ", with distributions" if request.wants_distributions else ""
        yield f"draft {request.sequence_id}: {request.limit} after {request.tokens.size}, {request.held} held{way}"
    for row in plan.decode:
        yield _decode(row)
    for rows in plan.prefill:
        yield _prefill(rows)
    if plan.waits_for_store:
        yield "wait for the store"
    if plan.waits_for_media:
        yield "wait for what is encoded"


def _operation(operation: KvOperation, numbers: SegmentNumbers) -> str:
    match operation:
        case ClearSequence(sequence_id):
            return f"clear {sequence_id}"
        case TruncateSequence(sequence_id, position):
            return f"cut {sequence_id} at {_position(position)}"
        case ForkSequence(source_id, target_id, position):
            return f"fork {source_id} into {target_id} at {_position(position)}"
        case StoreSegment(sequence_id, header):
            run = f"[{header.start.logical_tokens}, {header.stop.logical_tokens})"
            number = numbers.of(header.key)
            return f"store #{number} {run} of {sequence_id}, draft to {header.draft_stop}"
        case RestoreSegment(sequence_id, key, start, stop):
            return f"restore #{numbers.of(key)} to {sequence_id}, {_position(start)} to {_position(stop)}"
    return f"{type(operation).__name__.removesuffix('Segment').lower()} #{numbers.of(operation.key)}"


def _decode(row: DecodeRow) -> str:
    drafts = f", {len(row.drafts)} drafted by {row.drafter}" if row.drafts else ""
    return f"decode {row.sequence_id} at {row.position}, {row.max_tokens} at most{drafts}"


def _prefill(rows: PrefillRows | MediaRows) -> str:
    ends = ", to its end" if rows.sampling is not None else ""
    if isinstance(rows, MediaRows):
        return f"media {rows.sequence_id} at {rows.position}: [{rows.start}, {rows.stop}){ends}"
    return f"prefill {rows.sequence_id} at {rows.position}: {rows.tokens.size} tokens{ends}"


def _position(position: SpeculativePosition) -> str:
    return f"{position.target}/{position.draft}"
