"""What came of a simulation: figures of each group of users, and of the engine."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from forerun.core.request import FinishReason, OutputDelta
from forerun.simulation.crowd import Asked


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of times in seconds; all 0 where there are none."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        if not len(seconds):
            return cls()
        p50, p95, p99, most = np.percentile(np.asarray(seconds), (50, 95, 99, 100)).tolist()
        return cls(p50, p95, p99, most)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """Requests of one group that arrived after the warm-up."""

    name: str
    requests: int
    finished: int
    refused: int
    """Not taken: the queue was full, or the prompt too long."""
    gave_up: int
    """Cancelled, since nothing had come in the time that the user would wait."""
    failed: int
    ttft: Percentiles
    """From arrival to the first token."""
    itl: Percentiles
    """Between tokens, or blocks of them, of one answer."""
    hit_share: float
    """Of the prompts' tokens, how many were reused."""
    tokens_per_second: float
    """Of answers that were finished, while requests arrived."""
    least_served: float
    """Finished requests of the user who has fewest, as a share of the mean user's."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The engine at one time."""

    at: float
    running: int
    waiting: int
    used_cells: int
    tokens: int
    """Output tokens so far."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    groups: tuple[GroupOutcome, ...]
    goodput: float
    """Output tokens a second of answers that were finished, while requests arrived and after the warm-up."""
    parked: int
    """How often a running request gave its cells back."""
    evicted: int
    """Idle prefixes that left the KV memory."""
    steps: int
    rows_per_step: float
    busy: float
    """Share of the time in which steps ran, until the last answer."""
    ended_at: float
    timeline: tuple[Moment, ...] = field(repr=False)

    def group(self, name: str) -> GroupOutcome:
        """Raises KeyError."""
        return {group.name: group for group in self.groups}[name]

    def as_json(self) -> dict[str, Any]:
        figures = asdict(self)
        del figures["timeline"]
        return figures


@dataclass(slots=True)
class _Request:
    asked: Asked
    is_counted: bool
    last_at: float | None = None
    tokens_in_time: int = 0


@dataclass(slots=True)
class _Group:
    """Running totals."""

    ends: Counter[str] = field(default_factory=Counter)
    ttft: array[float] = field(default_factory=lambda: array("d"))
    gaps: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished_tokens: int = 0
    by_user: Counter[int] = field(default_factory=Counter)


class Records:
    """Collects what happens to requests. What arrives in [warmup, seconds) is counted, and what is said then."""

    def __init__(self, groups: int, warmup: float, seconds: float) -> None:
        self._warmup, self._seconds = warmup, seconds
        self._open: dict[str, _Request] = {}
        self._groups = [_Group() for _ in range(groups)]
        self.tokens = 0

    def asked(self, asked: Asked) -> None:
        request = _Request(asked, self._warmup <= asked.request.arrival < self._seconds)
        self._open[asked.request.id] = request

    def refused(self, request_id: str) -> None:
        self._end(request_id, "refused")

    def heard(self, delta: OutputDelta, now: float) -> None:
        request = self._open[delta.request_id]
        group = self._groups[request.asked.group]
        if delta.tokens:
            self.tokens += len(delta.tokens)
            if self._warmup <= now < self._seconds:
                request.tokens_in_time += len(delta.tokens)
            if request.is_counted:
                begun = request.last_at
                (group.ttft if begun is None else group.gaps).append(
                    now - (request.asked.request.arrival if begun is None else begun)
                )
            request.last_at = now
        if delta.finish_reason is not None:
            self._finish(request, group, delta)

    def _finish(self, request: _Request, group: _Group, delta: OutputDelta) -> None:
        is_whole = delta.finish_reason is FinishReason.LENGTH
        if is_whole:
            group.finished_tokens += request.tokens_in_time
        if is_whole and request.is_counted and delta.usage is not None:
            group.prompt_tokens += delta.usage.prompt_tokens
            group.cached_tokens += delta.usage.cached_tokens
            group.by_user[request.asked.user] += 1
        reason = {FinishReason.LENGTH: "finished", FinishReason.ABORT: "gave up"}.get(
            delta.finish_reason or FinishReason.ERROR, "failed"
        )
        self._end(delta.request_id, reason)

    def _end(self, request_id: str, reason: str) -> None:
        request = self._open.pop(request_id)
        if request.is_counted:
            self._groups[request.asked.group].ends[reason] += 1

    def group(self, index: int, name: str, users: int) -> GroupOutcome:
        """The figures of a group."""
        group = self._groups[index]
        finished = group.ends["finished"]
        return GroupOutcome(
            name,
            group.ends.total(),
            finished,
            group.ends["refused"],
            group.ends["gave up"],
            group.ends["failed"],
            Percentiles.of(group.ttft),
            Percentiles.of(group.gaps),
            group.cached_tokens / max(group.prompt_tokens, 1),
            group.finished_tokens / (self._seconds - self._warmup),
            min(group.by_user[user] for user in range(users)) * users / max(finished, 1),
        )
