"""Readers who are behind: their requests are paused, so that what is unread is bounded, and nobody else notices.

    engine ──deltas──► add ──► unread tokens ──► take ──► reader
              pause ◄── more than MOST_UNREAD          half of that ──► resume

A paused request keeps its place until others need its cells, and goes on with the token it would have had.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from forerun.core.request import OutputDelta

MOST_UNREAD: Final = 512
"""Tokens of one request that may be unread before it is paused; what its running step adds comes on top."""

Pace: TypeAlias = Callable[[Sequence[str]], None]
"""Pauses or resumes requests, without waiting."""


class Backlog:
    """Counts what is unread of the requests that are watched. Any thread may call."""

    def __init__(self, pause: Pace, resume: Pace, most: int = MOST_UNREAD) -> None:
        self._pause = pause
        self._resume = resume
        self._most = most
        self._unread: dict[str, int] = {}
        self._paused: set[str] = set()
        self._lock = threading.Lock()

    def watch(self, request_ids: Iterable[str]) -> None:
        """Count these from now on, to their last delta."""
        with self._lock:
            self._unread.update(dict.fromkeys(request_ids, 0))

    def add(self, deltas: Sequence[OutputDelta]) -> None:
        """One step's deltas are on their way to readers."""
        with self._lock:
            late = [delta.request_id for delta in deltas if self._is_late(delta)]
        if late:
            self._pause(late)

    def _is_late(self, delta: OutputDelta) -> bool:
        """Count a delta; whether its request is to be paused now."""
        key = delta.request_id
        if key not in self._unread:
            return False
        if delta.finish_reason is not None:
            del self._unread[key]
            self._paused.discard(key)
            return False
        self._unread[key] += len(delta.tokens)
        if self._unread[key] <= self._most or key in self._paused:
            return False
        self._paused.add(key)
        return True

    def take(self, deltas: Iterable[OutputDelta]) -> None:
        """These were read."""
        with self._lock:
            caught_up = [delta.request_id for delta in deltas if self._has_caught_up(delta)]
        if caught_up:
            self._resume(caught_up)

    def _has_caught_up(self, delta: OutputDelta) -> bool:
        key = delta.request_id
        if key not in self._unread:
            return False
        self._unread[key] -= len(delta.tokens)
        if key not in self._paused or 2 * self._unread[key] > self._most:
            return False
        self._paused.discard(key)
        return True

    def __repr__(self) -> str:
        return f"Backlog({len(self._unread)} requests, {len(self._paused)} paused)"
