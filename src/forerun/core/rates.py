"""How fast KV is computed, restored and fetched here: learned from steps, and what follows for a stored prefix."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.segment import StoreEventKind
from forerun.core.step import (
    DropSegment,
    FetchSegment,
    KvOperation,
    PrefillRows,
    RestoreSegment,
    StepPlan,
    StepResult,
    StoreSegment,
)

_SHARE = 0.2
"""Weight of the latest observation."""
_DISK_BYTES_A_MS = 200_000
"""What a disk and checking are expected to give before anything was fetched."""
_FEWEST_ROWS = 32
"""Prefill of fewer rows is not typical."""
_FEWEST_COPIED = 256
"""Copies of fewer tokens take what a copy takes, whatever it holds. A rate that was told of a few tokens (a chat
template's beginning, say) would make coming back look dear, and idle prefixes would stay where they slow others."""


class CopyRates:
    """Milliseconds a token. Begins with what two cores and a small model take (design/llama-facts.md)."""

    def __init__(self, prefill_ms: float | None = None, bytes_a_token: int = 0) -> None:
        self.prefill_ms = prefill_ms
        """None until it was seen."""
        self.restore_ms = 0.004
        self.store_ms = 0.003
        self.fetch_ms = bytes_a_token / _DISK_BYTES_A_MS if bytes_a_token else 0.05
        self._fetching: dict[str, tuple[float, int]] = {}
        """When each segment was asked for, and how many tokens it has."""

    def learn(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """What one step's copies, and its prefill where it did little else, took."""
        operations = plan.operations
        restored = _restored_tokens(operations)
        if restored >= _FEWEST_COPIED and result.times.restoring > 0:
            self.restore_ms = _mixed(self.restore_ms, result.times.restoring * 1e3 / restored)
        stored = _stored_tokens(operations)
        if stored >= _FEWEST_COPIED and result.times.storing > 0:
            self.store_ms = _mixed(self.store_ms, result.times.storing * 1e3 / stored)
        rows = sum(run.tokens.size for run in plan.prefill if isinstance(run, PrefillRows))
        if rows >= _FEWEST_ROWS and not plan.decode and result.times.target > 0:
            self.prefill_ms = _mixed(self.prefill_ms, result.times.target * 1e3 / rows)
        for operation in operations:
            match operation:
                case FetchSegment(key, tokens):
                    self._fetching[key] = (plan.now, tokens)
                case DropSegment(key):  # a fetch ends without an event
                    self._fetching.pop(key, None)
        for event in result.store_events:
            began, tokens = self._fetching.pop(event.key, (now, 0))
            if event.kind is StoreEventKind.FETCHED and now > began:
                self.fetch_ms = _mixed(self.fetch_ms, (now - began) * 1e3 / max(tokens, 1))

    def copies_ms(self, operations: Sequence[KvOperation]) -> float:
        """What copying to and from host memory is expected to take; the disk's part happens elsewhere."""
        return _restored_tokens(operations) * self.restore_ms + _stored_tokens(operations) * self.store_ms

    def saving(self, at_hand: int, fetched: int) -> float:
        """Milliseconds that restoring so many tokens saves, those included that are to be fetched first.

        Where prefill was not measured yet, restoring is taken to save something: the number means no time then.
        """
        if self.prefill_ms is None:
            return float(at_hand + fetched)
        return (at_hand + fetched) * (self.prefill_ms - self.restore_ms) - fetched * self.fetch_ms


def _restored_tokens(operations: Sequence[KvOperation]) -> int:
    return sum(one.stop.target - one.start.target for one in operations if isinstance(one, RestoreSegment))


def _stored_tokens(operations: Sequence[KvOperation]) -> int:
    return sum(one.header.tokens for one in operations if isinstance(one, StoreSegment))


def _mixed(known: float | None, seen: float) -> float:
    return seen if known is None else known + _SHARE * (seen - known)
