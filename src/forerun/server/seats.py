"""How many requests are open, how long they take, and so how long it is until there is room for one more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from forerun.errors import OverloadedError

_SHARE: Final = 0.2
"""Weight of the latest observation."""
_LONGEST: Final = 600.0
_UNKNOWN: Final = 2.0
"""Seconds to come back after while no request has finished yet."""


class Seats:
    """Counts requests from acceptance to their end. `max_running` run at a time, `max_queue` more may wait.

    Used on the event loop.
    """

    def __init__(self, max_running: int, max_queue: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_running = max_running
        self.max_queue = max_queue
        self._clock = clock
        self.open = 0
        self._seconds_between: float | None = None
        self._last_end: float | None = None

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Hold `count` seats. Raises OverloadedError where so many are not free."""
        self.take(count)
        try:
            yield
        finally:
            self.release(count)

    def take(self, count: int) -> None:
        """Raises OverloadedError where `count` more would be more than may run and wait."""
        if self.open + count > self.max_running + self.max_queue and self.open:
            waiting = max(self.open - self.max_running, 0)
            raise OverloadedError(
                f"{self.open} requests are open and {waiting} of them wait, at most {self.max_queue} may", self.wait()
            )
        self.open += count
        if self.open == count:
            self._last_end = self._clock()

    def release(self, count: int) -> None:
        """So many requests have ended."""
        now = self._clock()
        if self._last_end is not None:
            between = (now - self._last_end) / count
            known = self._seconds_between
            self._seconds_between = between if known is None else known + _SHARE * (between - known)
        self._last_end = now
        self.open -= count

    def wait(self) -> float:
        """Seconds until those that wait now have begun, at the rate at which requests have been ending."""
        waiting = max(self.open - self.max_running, 0)
        if self._seconds_between is None:
            return _UNKNOWN
        return min(max(waiting, 1) * self._seconds_between, _LONGEST)

    def check_integrity(self) -> None:
        assert self.open >= 0, f"{self.open} open requests"

    def __repr__(self) -> str:
        return f"Seats({self.open} open, {self.max_running} run, {self.max_queue} wait)"
