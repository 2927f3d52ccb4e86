"""What is soaked: an engine's scheduler and runner, and what is known of its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from forerun.core.request import FinishReason, OutputDelta, Request
from forerun.core.scheduler import Scheduler
from forerun.core.step import Runner
from forerun.testing.faults import SeededFaults


class SoakError(AssertionError):
    """Something that must never be was seen; the message says what."""


@dataclass(slots=True)
class Course:
    """One request of a soak, from its arrival on."""

    request: Request
    arrived: int
    """The step before which it arrived."""
    deltas: list[OutputDelta] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.tokens)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.deltas[-1].finish_reason if self.deltas else None

    @property
    def is_whole(self) -> bool:
        """Whether it ended because its answer did."""
        return self.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


class Answers(Protocol):
    """Knows what answers have to be."""

    @property
    def ties(self) -> int:
        """Answers that went another way where two tokens were about equally likely."""
        ...

    def check(self, course: Course) -> None:
        """Raise SoakError where a request got something else than it would have alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An engine to soak. Used by one thread."""

    name: str
    scheduler: Scheduler
    runner: Runner
    faults: SeededFaults
    answers: Answers
    draw: Callable[[Random, str, float], Request]
    """A request by its id and the time of its arrival."""
    check_memory: Callable[[], None]
    """Raises SoakError where native memory is not what the bookkeeping says."""
    clock: Callable[[], float]
    close: Callable[[], None] = lambda: None
