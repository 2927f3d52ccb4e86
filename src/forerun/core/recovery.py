"""What becomes of requests in a failed step, and the search for the one that makes steps fail, by halving.

    failed [a b c d] ─► [a b] [c d]      each group is tried in steps of its own; all others take turns with that
                        [a b] gets past what failed: no suspects any more
                              [c d] fails ─► [c] [d]
                                             [c] fails alone, time after time: it gets the error

Where only the evaluation failed, the runner knows what each sequence holds, and everyone goes on from there. Memory
that is unknown is cleared, and its request rebuilt from its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forerun.core.adapters import AdapterSet
from forerun.core.leases import Leases
from forerun.core.pool import SequencePool
from forerun.core.running import RequestState, Suspicion, sequence_of
from forerun.core.step import (
    DecodeRow,
    FailureKind,
    MediaRows,
    PrefillRows,
    SequenceFault,
    StepPlan,
    StepResult,
    changed_sequence,
    tokens_of,
)

_TRIES: Final = 3
"""A request gets the error when it has failed so often alone: a fault of the moment hardly strikes it that often.
Before the last try its memory is thrown away, in case that is what is wrong."""
_DOUBTS: Final = 2
"""A request drafts nothing more after so many failed steps with drafts that it got past without."""


class Recovery:
    """Owns the suspects: the requests of failed steps that have not got past what failed.

    `running` is the scheduler's: sequence id to request.
    """

    def __init__(self, pool: SequencePool, leases: Leases, running: dict[int, RequestState]) -> None:
        self._pool = pool
        self._leases = leases
        self._running = running
        self._groups: list[list[RequestState]] = []
        """What is tried together, the next one first."""

    @property
    def has_suspects(self) -> bool:
        return bool(self._groups)

    def in_turn(self, adapters: AdapterSet) -> list[RequestState]:
        """The suspects with these adapters to be tried next, in order of sequence id: those of the first group that has
        any running."""
        for group in self._groups:
            able = [one for one in group if one.sequence and not one.is_paused and one.adapters == adapters]
            if able:
                return sorted(able, key=lambda state: sequence_of(state).id)
        return []

    def failed(self, plan: StepPlan, result: StepResult) -> RequestState | None:
        """Settle what a failed step did to memory and requests. Returns who is to blame, once that is sure.

        Nobody is where a step was cut short on purpose, or stored KV could not be restored: that is not used again.
        """
        assert result.failure is not None
        evaluated = [self._running[sequence_id] for sequence_id in plan.sequence_ids()]
        is_first_cut = result.failure.kind is FailureKind.ABORTED and _may_be_on_purpose(evaluated)
        if result.failure.kind is FailureKind.ABORTED:
            for state in evaluated:
                state.was_cut_short = True
        if result.unrestorable or is_first_cut:
            self._settle_memory(plan, result)
            return None
        self._suspect(plan)
        self._split(evaluated)
        alone = evaluated[0] if len(evaluated) == 1 else None
        failures = 0 if alone is None else self._count_alone(alone)
        self._settle_memory(plan, result, distrusted=alone if failures >= _TRIES - 1 else None)
        return alone if failures >= _TRIES else None

    def fault(self, row: DecodeRow | PrefillRows | MediaRows, fault: SequenceFault) -> RequestState | None:
        """A row got nothing of a step that was done for the others. Returns its request where that is its end."""
        state = self._running[row.sequence_id]
        if not fault.is_own:
            self._suspect_row(row)
            self._split([state])
        self._leases.lose(state)
        return state if fault.is_own or self._count_alone(state) >= _TRIES else None

    def got_on(self, state: RequestState) -> None:
        """A request computed something: a suspect is none any more once it is past what failed."""
        state.was_cut_short = False
        suspicion = state.suspicion
        if suspicion is None or state.computed < suspicion.until:
            return
        if suspicion.has_drafted:
            state.drafting.doubts += 1
            state.drafting.is_off = state.drafting.doubts >= _DOUBTS
        self.forget(state)

    def forget(self, state: RequestState) -> None:
        """A request is no suspect any more, or has ended."""
        if state.suspicion is not None:
            state.suspicion = None
            self._leave(state)

    # --- who is suspected ----------------------------------------------------------

    def _suspect(self, plan: StepPlan) -> None:
        drafted = {request.sequence_id for request in plan.draft_requests}
        for row in (*plan.decode, *plan.prefill):
            self._suspect_row(row, has_drafted=row.sequence_id in drafted)

    def _suspect_row(self, row: DecodeRow | PrefillRows | MediaRows, *, has_drafted: bool = False) -> None:
        state = self._running[row.sequence_id]
        suspicion = state.suspicion = state.suspicion or Suspicion()
        suspicion.until = max(suspicion.until, state.computed + state.media_done + tokens_of(row))
        suspicion.has_drafted |= has_drafted or (isinstance(row, DecodeRow) and bool(row.drafts))

    def _split(self, suspects: Sequence[RequestState]) -> None:
        """Try the two halves apart, before all others."""
        for state in suspects:
            self._leave(state)
        half = len(suspects) // 2
        self._groups[:0] = [list(group) for group in (suspects[:half], suspects[half:]) if group]

    def _leave(self, state: RequestState) -> None:
        kept = ([one for one in group if one is not state] for group in self._groups)
        self._groups = [group for group in kept if group]

    @staticmethod
    def _count_alone(state: RequestState) -> int:
        """One more failed step of a suspect alone; how many by now."""
        assert state.suspicion is not None
        state.suspicion.alone += 1
        return state.suspicion.alone

    # --- memory ----------------------------------------------------------

    def _settle_memory(self, plan: StepPlan, result: StepResult, distrusted: RequestState | None = None) -> None:
        """Go on with what is known; quarantine the rest, and rebuild whose it is."""
        in_media = {rows.sequence_id for rows in plan.prefill if isinstance(rows, MediaRows)}
        for sequence_id in _touched(plan):
            state = self._running.get(sequence_id)
            if sequence_id in result.kept and (state is None or state is not distrusted):
                if state is not None and sequence_id in in_media:  # what is kept ends before the span
                    state.media_done = 0
                    self._pool.target_cells.truncate(sequence_id, state.computed)
                self._keep(sequence_id, state, result)
            elif state is None:
                self._pool.quarantine_idle(sequence_id)
            else:
                self._leases.lose(state)

    def _keep(self, sequence_id: int, state: RequestState | None, result: StepResult) -> None:
        if state is not None:
            state.computed += result.kept[sequence_id]
            self._pool.target_cells.append(sequence_id, result.kept[sequence_id])
        if sequence_id in result.draft_held:
            self._pool.draft_cells.resize(sequence_id, result.draft_held[sequence_id])

    def check_integrity(self) -> None:
        """Raise AssertionError where a suspect is in no group, or in several."""
        members = [state for group in self._groups for state in group]
        assert len({id(state) for state in members}) == len(members)
        assert all(self._groups)
        assert all(state.suspicion is not None for state in members)

    def __repr__(self) -> str:
        return f"Recovery({' '.join(str(len(group)) for group in self._groups) or 'no'} suspects)"


def _may_be_on_purpose(cut_short: Sequence[RequestState]) -> bool:
    """Whether somebody may have wanted a step to end early: none of its requests was in such a one since it got on."""
    return not any(state.is_suspect or state.was_cut_short for state in cut_short)


def _touched(plan: StepPlan) -> list[int]:
    """Sequences whose memory a failed step leaves unknown, each once, in order."""
    changed = [changed_sequence(operation) for operation in plan.operations]
    ids = [sequence_id for sequence_id in changed if sequence_id is not None]
    ids += [fill.sequence_id for fill in plan.draft_fills]
    return list(dict.fromkeys([*ids, *plan.sequence_ids()]))
