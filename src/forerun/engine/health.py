"""Whether an engine takes requests, and if not, why and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forerun.engine.loading import LoadPhase


class EngineState(StrEnum):
    UNLOADED = "unloaded"
    """The models are loaded when somebody asks for them."""
    LOADING = "loading"
    """Models are being loaded for the first time. Requests wait."""
    READY = "ready"
    STALLED = "stalled"
    """There is work, and no step has ended for longer than one should take."""
    RESTARTING = "restarting"
    """The engine's process died and comes back. Requests wait."""
    FAILED = "failed"
    """The models could not be loaded, or the engine broke and does not come back."""
    CLOSED = "closed"


_TAKES_REQUESTS = frozenset(
    {EngineState.UNLOADED, EngineState.LOADING, EngineState.READY, EngineState.STALLED, EngineState.RESTARTING}
)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """A look at an engine from outside."""

    state: EngineState
    reason: str | None = None
    """Why it is not ready, in one line."""
    phase: LoadPhase | None = None
    """Of loading."""
    loading: str = ""
    """What is being loaded."""
    progress: float = 0.0
    """The share of it that is loaded, 0 to 1."""
    attempt: int = 0
    """How often it was started again since it last was ready."""
    seconds: float | None = None
    """Until it is expected to be tried again, or since when it is stalled."""

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken. Those of an engine that loads or restarts wait."""
        return self.state in _TAKES_REQUESTS

    @property
    def is_ready(self) -> bool:
        """Whether requests are being answered."""
        return self.state is EngineState.READY


READY = EngineHealth(EngineState.READY)


def stalled_or_ready(step_seconds: float | None, stall_after: float) -> EngineHealth:
    """Of an engine that runs, by how long its present step has taken."""
    if step_seconds is None or step_seconds <= stall_after:
        return READY
    reason = f"there is work, but no step has ended for {step_seconds:.0f} s (a step may take {stall_after:g} s)"
    return EngineHealth(EngineState.STALLED, reason, seconds=step_seconds)
