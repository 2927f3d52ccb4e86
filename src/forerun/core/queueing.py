"""The line of waiting requests: in which order they may start.

    priority 5     [ ran before | deadlines, the earliest first | the others, as they came ]
    priority 0     [ ran before | deadlines                     | the others               ]
    priority -3    ...

Who has run before comes first among equals: what it computed is kept for it. A deadline that has passed counts no
more: who can still be in time goes first. The order is bent in two ways, both bounded:

    warm first     of the first few equals those whose prompts are mostly in memory now, and may not be later
    aging          one of every few starts is for who has waited longest, of whatever priority, once that is long

Whoever was overtaken often is overtaken no more (`is_next`): everybody starts within a bounded number of starts.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from forerun.core.running import RequestState

MOST_OVERTAKEN: Final = 8
"""Starts of others who came later, or were behind, that a request puts up with."""
_URGENT_PATIENCE: Final = 4
"""It puts up with so many times as many of a higher priority."""
MOST_GIVEN_WAY: Final = 2
"""A request is parked so often for more urgent ones."""
_AGED_SHARE: Final = 4
"""One of so many starts may be for who has waited longest."""
_LEVEL_SECONDS: Final = 5.0
"""A request has aged once it waited so long for each level of priority that it is below the first."""
_LONGEST_SECONDS: Final = 60.0
"""Or so long, however far below."""
_WINDOW: Final = 8
"""Warm requests are looked for among so many."""

_Rank: TypeAlias = tuple[int, bool, float, int]


class WaitingLine:
    """Owns the order of waiting requests."""

    def __init__(self) -> None:
        self._line: list[RequestState] = []
        self._next_deadline = math.inf
        self._now = 0.0
        self._since_aged = 0
        self._picked: RequestState | None = None
        """Who is tried first now because it has waited longest."""

    def add(self, state: RequestState) -> None:
        """A request that came, or lost its memory."""
        deadline = state.request.deadline
        if deadline is not None and deadline > self._now:
            self._next_deadline = min(self._next_deadline, deadline)
        insort(self._line, state, key=self._rank)

    def remove(self, state: RequestState) -> None:
        """A request that ended."""
        self._line.remove(state)

    def start(self, state: RequestState, passed: list[RequestState]) -> None:
        """A request starts, before those in `passed`, which did not fit, and all that are before it in the line."""
        before = self._line.index(state)
        if state is self._picked:
            self._since_aged = 0
            state.gave_way = MOST_GIVEN_WAY  # the urgent would take the place back at once
        else:
            self._since_aged += 1
            for other in {*passed, *filter(is_able, self._line[:before])}:
                other.overtaken += 1
        del self._line[before]

    def in_order(self, now: float, is_warm: Callable[[RequestState], bool] | None = None) -> list[RequestState]:
        """Waiting requests in the order in which to try them. `is_warm`: whether most of a prompt is at hand now; None
        where nobody has to wait for another's place, so that it does not matter."""
        self._pass_deadlines(now)
        line = list(self._line)
        if is_warm is not None:
            self._put_warm_first(line, is_warm)
        self._picked = self._aged(now) if self._since_aged >= _AGED_SHARE - 1 else None
        if self._picked is not None:
            line.remove(self._picked)
            line.insert(0, self._picked)
        return line

    def _rank(self, state: RequestState) -> _Rank:
        deadline = state.request.deadline
        if deadline is None or deadline <= self._now:
            deadline = math.inf
        return -state.request.priority, state.admitted_at is None, deadline, state.number

    def _pass_deadlines(self, now: float) -> None:
        self._now = now
        if now >= self._next_deadline:
            self._line.sort(key=self._rank)
            deadlines = (state.request.deadline for state in self._line)
            self._next_deadline = min((one for one in deadlines if one is not None and one > now), default=math.inf)

    def _put_warm_first(self, line: list[RequestState], is_warm: Callable[[RequestState], bool]) -> None:
        """Of the first ones that differ in their arrival alone."""
        equals = [state for state in line[:_WINDOW] if self._rank(state)[:3] == self._rank(line[0])[:3]]
        if any(map(is_next, equals)):  # nobody overtakes those, warm or not
            line[: len(equals)] = sorted(equals, key=lambda state: not is_next(state))
        elif len(equals) > 1:
            line[: len(equals)] = sorted(equals, key=lambda state: not is_warm(state))

    def _aged(self, now: float) -> RequestState | None:
        """Who has waited longest, where that is long and its turn does not come anyway."""
        if len(self._line) < 2:
            return None
        oldest = min(self._line, key=lambda state: state.number)
        levels = self._line[0].request.priority - oldest.request.priority
        has_aged = now - oldest.request.arrival >= min(max(levels, 1) * _LEVEL_SECONDS, _LONGEST_SECONDS)
        return oldest if has_aged and oldest is not self._line[0] else None

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._line)

    def __repr__(self) -> str:
        return f"WaitingLine({len(self._line)} requests)"


def is_next(state: RequestState, *, among_urgent: bool = False) -> bool:
    """Whether a request was overtaken so often that none of its priority or a lower one may overtake it any more, or
    nobody at all, more urgent ones included."""
    return state.overtaken >= MOST_OVERTAKEN * (_URGENT_PATIENCE if among_urgent else 1)


def is_able(state: RequestState) -> bool:
    """Whether a request would start if there were room: it waits for no reader, and for no prefix to be computed or
    read from disk."""
    return not (state.is_paused or state.waits_for or state.fetching.parts)
