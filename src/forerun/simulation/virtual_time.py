"""The loop: the real scheduler, a runner that counts, and a clock that goes as far as each step takes."""

from __future__ import annotations

from typing import Final

from forerun.core.costs import LiveCosts, StepCosts
from forerun.core.request import OutputDelta
from forerun.core.scheduler import Scheduler
from forerun.core.step import StepPlan
from forerun.core.synthetic import SyntheticAcceptance
from forerun.errors import EngineError, InvalidRequestError
from forerun.simulation.conversation import VOCABULARY_SIZE
from forerun.simulation.crowd import Crowd
from forerun.simulation.outcome import Moment, Outcome, Records
from forerun.simulation.runner import SimulatedRunner
from forerun.simulation.workload import Workload

_MOMENTS: Final = 200
"""Of a timeline."""
_PATIENCE: Final = 1000
"""Steps that do nothing, one after the other, before the scheduler counts as stuck."""


class SimulatedVocabulary:
    """Tokens without text, none of which ends an answer."""

    size = VOCABULARY_SIZE
    end_tokens: frozenset[int] = frozenset()

    def piece(self, token: int) -> bytes:  # noqa: ARG002
        return b""


class Simulation:
    """One run. Owns scheduler, runner and clock."""

    def __init__(self, workload: Workload, crowd: Crowd) -> None:
        config, machine = workload.config, workload.machine
        draft = LiveCosts(machine.draft) if machine.draft else None
        self.scheduler = Scheduler(config, SimulatedVocabulary(), costs=StepCosts(LiveCosts(machine.target), draft))
        chance = config.synthetic_acceptance
        acceptance = None if chance is None else SyntheticAcceptance(chance)
        self.runner = SimulatedRunner(machine, config.n_seq_max, acceptance)
        self.now = 0.0
        self._workload = workload
        self._crowd = crowd
        self._records = Records(len(workload.groups), workload.warmup, workload.seconds)
        self._steps = 0
        self._busy = 0.0
        self._idle_steps = 0
        self._timeline: list[Moment] = []
        self._next_moment = 0.0

    def run(self) -> Outcome:
        """Until everybody has an answer. Raises EngineError where the scheduler gets nowhere."""
        while self._goes_on():
            self.step()
        return self._outcome()

    def step(self) -> StepPlan:
        """One step of the engine, and what it takes."""
        plan = self.scheduler.schedule(self.now)
        result = self.runner.execute(plan)
        self.now = plan.now + result.elapsed
        self._busy += result.elapsed
        for delta in self.scheduler.update(plan, result):
            self._hear(delta)
        if plan.decode or plan.prefill:
            self._steps += 1
            self._idle_steps = 0
        elif not result.elapsed:
            self._wait()
        self._note_moment()
        return plan

    def _goes_on(self) -> bool:
        """Let everybody who is due ask; False once nobody asks or answers any more."""
        self._ask()
        if self.scheduler.has_work:
            return True
        upcoming = self._crowd.next_at()
        if upcoming is None:
            return False
        self.now = max(self.now, upcoming)
        return True

    def _ask(self) -> None:
        for asked in self._crowd.asks(self.now, self.scheduler.stats.waiting):
            self._records.asked(asked)
            try:
                self.scheduler.add(asked.request)
            except InvalidRequestError:
                self._records.refused(asked.request.id)
                self._crowd.refused(asked.request.id, self.now)
        for request_id in self._crowd.gives_up(self.now):
            delta = self.scheduler.abort(request_id, self.now)
            if delta is not None:
                self._hear(delta)

    def _hear(self, delta: OutputDelta) -> None:
        self._records.heard(delta, self.now)
        self._crowd.hears(delta, self.now)

    def _wait(self) -> None:
        """A step did nothing and took no time: go on to when somebody asks."""
        self._idle_steps += 1
        upcoming = self._crowd.next_at()
        if upcoming is not None:
            self.now = max(self.now, upcoming)
        elif self._idle_steps > _PATIENCE:
            raise EngineError(f"the scheduler has work but plans none: {self.scheduler!r}")

    def _note_moment(self) -> None:
        if self.now < self._next_moment:
            return
        self._next_moment = self.now + self._workload.seconds / _MOMENTS
        stats = self.scheduler.stats
        self._timeline.append(Moment(self.now, stats.running, stats.waiting, stats.used_cells, self._records.tokens))

    def _outcome(self) -> Outcome:
        groups = tuple(
            self._records.group(index, group.name, group.count) for index, group in enumerate(self._workload.groups)
        )
        stats = self.scheduler.stats
        return Outcome(
            groups,
            sum(group.tokens_per_second for group in groups),
            stats.preemptions,
            stats.evicted_prefixes,
            self._steps,
            self.runner.rows / max(self._steps, 1),
            self._busy / max(self.now, 1e-9),
            self.now,
            tuple(self._timeline),
        )
