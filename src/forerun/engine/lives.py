"""The lives of an engine's process: what its health is meanwhile, and when it is started again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from forerun.engine.health import READY, EngineHealth, EngineState
from forerun.engine.loading import LoadPhase
from forerun.engine.process import Backoff

CLOSED: Final = "the engine was closed"


class Lives:
    """Decides; whoever owns it starts, asks and buries processes. One thread at a time changes it, any may read."""

    def __init__(self, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._health = EngineHealth(EngineState.LOADING, "the engine is being loaded")
        self.restart_at: float | None = None
        """When the next process is due, on the clock; None where none is."""
        self._ready_since: float | None = None
        self._last_words = ""

    @property
    def health(self) -> EngineHealth:
        """What its reports and its end tell, with the time until the next one."""
        health, restart_at = self._health, self.restart_at
        if health.state is not EngineState.RESTARTING or restart_at is None:
            return health
        return replace(health, seconds=max(restart_at - self._clock(), 0.0))

    @property
    def is_ready(self) -> bool:
        return self._health.is_ready

    @property
    def was_ready(self) -> bool:
        """Whether the present process, or the one that ended just now, got ready."""
        return self._ready_since is not None

    def begin(self) -> None:
        """A process is started."""
        self.restart_at = None
        self._last_words = ""

    def load(self, phase: LoadPhase, what: str, share: float) -> None:
        """It loads `what`, in this phase; a share of 0 to 1 is there."""
        self._health = replace(self._health, phase=phase, loading=what, progress=share)

    def be_ready(self) -> None:
        """It takes requests from now on."""
        self._health = replace(READY, attempt=self._health.attempt)
        self._ready_since = self._clock()

    def say(self, message: str) -> None:
        """It told why it is about to end."""
        self._last_words = message

    def why(self, how: str) -> str:
        """What to tell those who were with the process, which ended like that."""
        return f"the engine's process {how}" + (f": {self._last_words}" if self._last_words else "")

    def start_later(self, why: str) -> None:
        """It died: another one is due, later each time."""
        now = self._clock()
        ready_for = 0.0 if self._ready_since is None else now - self._ready_since
        attempt = self._backoff.attempt(self._health.attempt, ready_for)
        self._ready_since = None
        self.restart_at = now + self._backoff.delay(attempt)
        self._health = EngineHealth(EngineState.RESTARTING, why, attempt=attempt)

    def fail(self, reason: str) -> None:
        """It could not be built, and would not be the next time."""
        self._health = EngineHealth(EngineState.FAILED, reason)

    def close(self, reason: str) -> None:
        """There will be no other; what failed stays failed."""
        self.restart_at = None
        if self._health.state is not EngineState.FAILED:
            self._health = EngineHealth(EngineState.CLOSED, reason)
