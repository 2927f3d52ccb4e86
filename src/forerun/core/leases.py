"""How a running request's time on its sequence ends: finished, put back to go on later, or with its memory lost."""

from __future__ import annotations

from forerun.core.admission import Admission
from forerun.core.pool import SequencePool
from forerun.core.prefix import ReusablePrefix
from forerun.core.running import RequestState, sequence_of


class Leases:
    """Takes requests out of `running`, which is the scheduler's: sequence id to request, oldest first."""

    def __init__(self, pool: SequencePool, admission: Admission, running: dict[int, RequestState]) -> None:
        self._pool = pool
        self._admission = admission
        self._running = running

    def end(self, state: RequestState) -> None:
        """A request that ended, running or waiting: what it computed stays for others, nothing after a stop."""
        if state.sequence is None:
            self._admission.remove(state)
            state.let_go(self._pool.tiers)
        else:
            self._release(state)

    def park(self, state: RequestState) -> None:
        """Give a running request's cells back; it goes on later exactly where it was, from a copy in host memory."""
        tiers, state.parked = self._pool.tiers, ()
        if tiers is not None and state.reuses_cache:
            layout = state.layout(state.computed)
            self._pool.store(sequence_of(state).id, layout, state.scope, state.request.id)
            state.parked = tiers.keep(layout, state.scope)
        self._release(state)
        self._admission.add(state)

    def lose(self, state: RequestState) -> None:
        """A running request's memory is unknown: it is rebuilt from its tokens."""
        sequence = sequence_of(state)
        del self._running[sequence.id]
        self._pool.quarantine(sequence)
        self._forget_memory(state)
        self._admission.add(state)

    def _release(self, state: RequestState) -> None:
        sequence = sequence_of(state)
        del self._running[sequence.id]
        layout = state.layout(min(state.computed, state.history.size))
        reusable = ReusablePrefix(layout, scope=state.scope) if state.reuses_cache else None
        self._pool.release(sequence, reusable, state.request.id)
        self._forget_memory(state)

    def _forget_memory(self, state: RequestState) -> None:
        self._admission.look_again()
        state.sequence = None
        state.computed = state.promised = state.media_done = 0

    def __repr__(self) -> str:
        return f"Leases({len(self._running)} running)"
