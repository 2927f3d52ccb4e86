"""One step of the engine: decide, do, learn."""

from __future__ import annotations

from collections.abc import Callable

from forerun.core.request import OutputDelta
from forerun.core.scheduler import Scheduler
from forerun.core.step import Runner
from forerun.engine.telemetry import CountedRunner, Telemetry


class EngineLoop:
    """Joins a scheduler, a runner and a clock. Whoever steps it, on one thread, owns all three, and what is counted."""

    __slots__ = ("clock", "runner", "scheduler", "telemetry")

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.telemetry = Telemetry(scheduler.config.draft_name, clock())
        self.runner = CountedRunner(runner, self.telemetry)
        self.clock = clock

    def step(self) -> list[OutputDelta]:
        """What one step added to the requests. A feature that needs a branch here is in the wrong place."""
        plan = self.scheduler.schedule(self.clock())
        result = self.runner.execute(plan)
        return self.scheduler.update(plan, result)
