"""Which running requests give their cells back when memory is full, so that all others go on.

    running ──park──► waiting, before all others of its priority ──admit──► running, token for token where it was

A parked request's KV, target and draft, is copied to host memory and held there; its text, sampler and grammar are
functions of its tokens. Where there is no host memory for it, it is computed again.

    for others  of a higher priority that would find no place otherwise: the same choice among those below it
    never       the first of the highest priority: whatever happens, it gets to its end, and then the next one is first
    first       those whose readers are behind, and have no use for their cells now
    then        the lowest priority; and among these the one that is cheapest to bring back, of those that free enough
"""

from __future__ import annotations

from typing import Final

from forerun.core.leases import Leases
from forerun.core.pool import SequencePool
from forerun.core.queueing import MOST_GIVEN_WAY
from forerun.core.running import RequestState, sequence_of

_PREFILL_MS: Final = 1.0
"""What computing a token again is taken to cost until it was measured."""


class Parking:
    """Chooses who is parked. `running` is the scheduler's: sequence id to request, oldest first."""

    def __init__(self, pool: SequencePool, leases: Leases, running: dict[int, RequestState]) -> None:
        self._pool = pool
        self._leases = leases
        self._running = running
        self.count = 0
        """Requests parked so far."""

    def park_one(self, cells: int) -> None:
        """Park one of at least two running requests. `cells`: how many are wanted."""
        first = min(self._running.values(), key=_precedence)
        others = [state for state in self._running.values() if state is not first]
        self.park(min(reversed(others), key=lambda state: self._rank(state, cells)))

    def park(self, state: RequestState) -> None:
        """Park a running request."""
        self._leases.park(state)
        self.count += 1

    def paused(self) -> RequestState | None:
        """A running request whose reader is behind."""
        return next((state for state in self._running.values() if state.is_paused), None)

    def below(self, urgent: RequestState) -> RequestState | None:
        """The running request that gives way to a more urgent one; nobody has to more than a few times."""
        below = [
            state
            for state in self._running.values()
            if state.request.priority < urgent.request.priority and state.gave_way < MOST_GIVEN_WAY
        ]
        return min(reversed(below), key=lambda state: self._rank(state, 0)) if below else None

    def _rank(self, state: RequestState, cells: int) -> tuple[bool, int, bool, float]:
        """The lowest goes: of what frees too little, what is cheapest a cell."""
        own = self._pool.own_cells(sequence_of(state).id)
        cost = own * self._ms_a_token(state)
        is_enough = own >= cells
        return (
            not state.is_paused,
            state.request.priority,
            not is_enough,
            cost if is_enough else -float(own),
        )

    def _ms_a_token(self, state: RequestState) -> float:
        """What bringing a token back costs."""
        tiers = self._pool.tiers
        if tiers is None:
            return _PREFILL_MS
        is_kept = state.reuses_cache and tiers.may_keep(state.computed)
        return tiers.rates.restore_ms if is_kept else tiers.rates.prefill_ms or _PREFILL_MS

    def __repr__(self) -> str:
        return f"Parking({self.count} requests so far)"


def _precedence(state: RequestState) -> tuple[bool, int, int]:
    return (state.is_paused, -state.request.priority, state.number)
