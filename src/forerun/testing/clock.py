"""Time that is told to pass."""

from __future__ import annotations


class ManualClock:
    """A clock that moves when told to. Call it for the time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
