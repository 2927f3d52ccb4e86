"""Admission: which waiting request starts, from which cached prefix, and who waits for a prefix being computed.

       add ──► waiting ──admit──► running (the scheduler's)
                 ▲  │
  lost its cells ┘  └─ passed over while a running request computes its prefix (single flight)

In the order of the line (core/queueing.py). Nobody waits for those that wait for a prefix, nor for a request that does
not fit, as long as it was not overtaken too often: then all others wait until it fits. It is looked at again once
something was given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forerun.core.cache_report import CacheReports
from forerun.core.config import SchedulerConfig
from forerun.core.pool import PrefixMatch, Sequence, SequencePool
from forerun.core.queueing import WaitingLine, is_able, is_next
from forerun.core.running import RequestState, sequence_of
from forerun.core.stored import StoredPrefix

_MOST_FETCHES = 2
"""A request waits so often for the disk: what was fetched may have had to go again by the time it starts."""
_MOST_UNFIT = 16
"""A prompt behind so many that do not fit is not looked at: each look costs a lookup."""
_WARM = 0.5
"""Most of a prompt is at hand where this share is."""
_MIN_SHARED_WAIT = 8
"""A request waits for a prefix that is being computed where that saves at least this many tokens."""


class Admission:
    """Owns the waiting requests. Adds to `running`, which is the scheduler's: sequence id to request, oldest first."""

    def __init__(self, config: SchedulerConfig, pool: SequencePool, running: dict[int, RequestState]) -> None:
        self._config = config
        self._pool = pool
        self._running = running
        self._line = WaitingLine()
        self._unfit: set[RequestState] = set()
        """Those that did not fit when they were last looked at; nothing was given back since."""
        self.reports = CacheReports(config, pool)

    def add(self, state: RequestState) -> None:
        """A request that came, or ran and lost its memory: the line knows which of them goes first."""
        self._line.add(state)

    def remove(self, state: RequestState) -> None:
        """A waiting request that ended."""
        self._line.remove(state)
        self.look_again()

    def look_again(self) -> None:
        """Something was given back: what did not fit may fit now."""
        self._unfit.clear()

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._line)

    def admit(self, now: float) -> None:
        """Start what may run now: each waiting request is looked up, and forked, taken over, or started empty."""
        while self._has_place and self._start_next(now):
            pass

    @property
    def _has_place(self) -> bool:
        return len(self._line) > 0 and len(self._running) < self._config.max_num_seqs

    def _start_next(self, now: float) -> bool:
        """Start the first that can; whether to go on with the next one."""
        is_scarce = len(self._running) + len(self._line) > self._config.max_num_seqs
        passed: list[RequestState] = []
        barrier: int | None = None
        for state in self._line.in_order(now, self._is_warm if is_scarce else None):
            if barrier is not None and state.request.priority <= barrier:
                continue
            if state not in self._unfit and self._waits_or_starts(state, passed, now):
                if state.sequence is not None:
                    return True
                continue
            passed.append(state)
            if is_next(state, among_urgent=True) or len(passed) >= _MOST_UNFIT:
                return False
            if is_next(state):
                barrier = state.request.priority
        return False

    def _waits_or_starts(self, state: RequestState, passed: list[RequestState], now: float) -> bool:
        """False for a request that does not fit."""
        if state.is_paused or self._still_waits_for_prefix(state) or self._still_fetches(state):
            return True
        match = self._lookup(state)
        if self._should_wait(state, match) or self._fetches(state, match):
            return True
        if not self._admit(state, self._without_missing(match), now):
            self._unfit.add(state)
            return False
        self._line.start(state, passed)
        return True

    def _is_warm(self, state: RequestState) -> bool:
        """Whether most of a prompt is at hand now, and it could go on from there."""
        if state in self._unfit or not is_able(state):
            return False
        match = self._without_missing(self._lookup(state))
        return match is not None and match.boundary.logical_tokens >= _WARM * state.history.size

    @property
    def has_ready(self) -> bool:
        """Whether a request waits that could run if there were room."""
        return any(map(is_able, self._line))

    @property
    def stuck(self) -> RequestState | None:
        """The first in line that could run if another gave way: it finds no place, or does not fit."""
        first = next((state for state in self._line if is_able(state)), None)
        is_full = len(self._running) >= self._config.max_num_seqs
        return first if is_full or first in self._unfit else None

    @property
    def parked(self) -> int:
        """Requests that ran, and wait for cells to go on."""
        return sum(state.parked is not None for state in self._line)

    def promise_outputs(self) -> None:
        """Let lookups see what running requests have generated since they were last told."""
        for state in self._running.values():
            if state.reuses_cache and state.promised < state.history.size:
                self._pool.extend(sequence_of(state), state.history.slice(state.promised, state.history.size))
                state.promised = state.history.size

    def _lookup(self, state: RequestState) -> PrefixMatch | None:
        if not state.reuses_cache:
            return None
        self.promise_outputs()
        layout = state.layout(state.history.size)
        match = self._pool.find(layout, state.scope)
        if match is None:
            return None
        best = max(match.promised, match.boundary, key=lambda boundary: boundary.logical_tokens)
        return match if self._pool.is_worth_reusing(best, layout) else None

    def _should_wait(self, state: RequestState, match: PrefixMatch | None) -> bool:
        """Single flight: a prefix that a running request is about to hold is not computed a second time."""
        if match is None or state.is_suspect:
            return False
        until = match.promised.logical_tokens
        if until - match.boundary.logical_tokens < _MIN_SHARED_WAIT:
            return False
        leader = self._running[match.promised_by]
        if leader.is_paused or until <= leader.computed:  # it is there already, and cannot be cut there
            return False
        if self._config.memory.has_state:  # it is forked where it ends, so a chunk has to end there
            leader.fences.add(until)
        state.waits_for = (sequence_of(leader), until)
        return True

    def _still_waits_for_prefix(self, state: RequestState) -> bool:
        if state.waits_for is None:
            return False
        leader, until = state.waits_for
        running = self._running.get(leader.id)
        is_on_its_way = running is not None and running.sequence is leader and not running.is_paused
        if running is not None and is_on_its_way and running.computed < until:
            return True
        state.waits_for = None
        return False

    def _fetches(self, state: RequestState, match: PrefixMatch | None) -> bool:
        """Whether it waits for a prefix from disk, which is asked for if it is not on its way yet."""
        tiers = self._pool.tiers
        if tiers is None or match is None or not match.stored.missing or state.fetches == _MOST_FETCHES:
            return False
        if not tiers.fetch(match.stored, state.request.id):
            return False
        state.fetches += 1
        state.fetching = match.stored
        return True

    def _still_fetches(self, state: RequestState) -> bool:
        if any(part.segment.is_fetching for part in state.fetching.parts):
            return True
        state.fetching = StoredPrefix()
        return False

    @property
    def is_fetching(self) -> bool:
        """Whether a waiting request goes on once something was read from disk."""
        return any(state.fetching.parts for state in self._line)

    def _without_missing(self, match: PrefixMatch | None) -> PrefixMatch | None:
        """What of a match can be had at once."""
        tiers = self._pool.tiers
        if tiers is None or match is None or not match.stored.missing:
            return match
        return replace(match, stored=tiers.at_hand(match.stored))

    def _admit(self, state: RequestState, match: PrefixMatch | None, now: float) -> bool:
        layout = state.layout(state.history.size)
        if match is not None and not self._pool.is_worth_reusing(match.boundary, layout):
            match = None
        if self._running and not self._fits(state, match):
            return False
        sequence = self._pool.acquire_matching(layout, state.scope, match=match) if match else self._pool.acquire()
        if sequence is None:
            return False
        known = self.reports.started(state, layout, sequence) if state.reuses_cache else 0
        self._start(state, sequence, now)
        if self._pool.tiers is not None and state.reuses_cache:
            state.count_restored(sequence, match.stored if match else None, self._pool.tiers.rates)
            if not self._config.memory.is_dense:
                state.choose_checkpoints(self._config.memory, known)
            self._pool.note_use(layout, state.scope, state.computed)
        return True

    def _fits(self, state: RequestState, match: PrefixMatch | None) -> bool:
        """Whether the request can be computed without pushing out those that run."""
        reused = match.resident.logical_tokens if match else 0
        promised_cells = sum(running.remaining for running in self._running.values())
        available = self._pool.available_cells - promised_cells
        if reused and match is not None and match.source_id not in self._running:
            available -= reused
        return state.history.size - reused + 1 <= available

    def _start(self, state: RequestState, sequence: Sequence, now: float) -> None:
        state.let_go(self._pool.tiers)
        state.sequence = sequence
        state.computed = sequence.reused.logical_tokens
        if state.cached is None:
            state.cached = min(state.computed, state.history.prompt_tokens)
        if state.admitted_at is None:
            state.admitted_at = now
        if state.reuses_cache:
            self._pool.promise(sequence, state.layout(state.history.size), state.scope)
            state.promised = state.history.size
        self._running[sequence.id] = state
