"""The engine's telemetry as others read it: without waiting long, and never counting down when the engine restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Final, TypeVar

from forerun.core.stats import SchedulerStats
from forerun.engine.telemetry import DraftCounts, EngineTelemetry
from forerun.errors import ForerunError

T = TypeVar("T")
_SUMMED_STATS: Final = ("preemptions", "quarantines", "evicted_prefixes")
_SUMMED: Final = ("step_seconds", "store_seconds", "restore_seconds", "computed_tokens")
_SUMMED_BY_KEY: Final = ("rows", "cached_tokens", "output_tokens", "operations", "failed_steps", "finished", "errors")


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What is known of the engine."""

    telemetry: EngineTelemetry
    """Counts of all its starts together."""
    starts: int
    """How often it was started, as far as somebody looked in between."""
    age: float
    """Seconds since it said so."""
    loads: int = 1
    """How many of its starts were wanted."""
    is_current: bool = True
    """Whether there is such an engine now: what is no count of one that was unloaded says nothing."""


class EngineCounter:
    """Asks the engine, at most one question at a time. Used on the event loop.

    What an engine counted between the last look and its crash is lost.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[EngineTelemetry]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asking: asyncio.Task[EngineTelemetry] | None = None
        self._before: EngineTelemetry | None = None
        """Sum of earlier starts."""
        self._latest: EngineTelemetry | None = None
        """Of the current start."""
        self._starts = 0
        self._told_at = 0.0

    async def counts(self, seconds: float) -> EngineCounts | None:
        """What the engine says within so many seconds, else what it said last; None where it never said anything."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._answer())
        asking = self._asking
        await asyncio.wait([asking], timeout=seconds)
        if asking.done() and asking is self._asking:  # others may have waited for the same answer, and taken it
            self._take(asking)
            self._asking = None
        if self._latest is None:
            return None
        total = self._latest if self._before is None else summed(self._before, self._latest)
        return EngineCounts(total, self._starts, self._clock() - self._told_at)

    async def _answer(self) -> EngineTelemetry:
        return await self._ask()

    def _take(self, answered: asyncio.Task[EngineTelemetry]) -> None:
        if answered.cancelled() or isinstance(answered.exception(), ForerunError):
            return  # it is being restarted, or has ended: what is known stays
        told = answered.result()
        latest = self._latest
        if latest is None or latest.started != told.started:
            self._starts += 1
            if latest is not None:
                self._before = latest if self._before is None else summed(self._before, latest)
        self._latest = told
        self._told_at = self._clock()


def summed(before: EngineTelemetry, now: EngineTelemetry) -> EngineTelemetry:
    """Counts of both starts; what is no count is as it is now."""
    changed: dict[str, Any] = {name: getattr(before, name) + getattr(now, name) for name in _SUMMED}
    changed |= {name: _by_key(getattr(before, name), getattr(now, name), add) for name in _SUMMED_BY_KEY}
    drafts = _by_key(before.drafts, now.drafts, _summed_drafts)
    return replace(now, stats=_summed_stats(before.stats, now.stats), drafts=drafts, **changed)


def _summed_stats(before: SchedulerStats, now: SchedulerStats) -> SchedulerStats:
    return replace(now, **{name: getattr(before, name) + getattr(now, name) for name in _SUMMED_STATS})


def _by_key(before: Mapping[str, T], now: Mapping[str, T], join: Callable[[T, T], T]) -> dict[str, T]:
    both = {key: join(before[key], value) if key in before else value for key, value in now.items()}
    return {**before, **both}


def _summed_drafts(before: DraftCounts, now: DraftCounts) -> DraftCounts:
    return DraftCounts(_summed_places(before.proposed, now.proposed), _summed_places(before.accepted, now.accepted))


def _summed_places(before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    longer, shorter = (before, now) if len(before) > len(now) else (now, before)
    return tuple(count + (shorter[place] if place < len(shorter) else 0) for place, count in enumerate(longer))
