"""One workload at several loads, as multiples of what the engine can do at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forerun.simulation.crowd import BackloggedCrowd, TimedCrowd
from forerun.simulation.outcome import Outcome
from forerun.simulation.virtual_time import Simulation
from forerun.simulation.workload import Workload


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    load: float
    """Tokens that are asked for as answers, as a multiple of the capacity."""
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Study:
    """What `forerun simulate` found."""

    capacity: float
    """Output tokens a second where something always waits, everybody is equal, and the mix is the workload's."""
    outcomes: tuple[LoadOutcome, ...]


def capacity(workload: Workload) -> float:
    """Output tokens a second, at most."""
    config = workload.config
    backlog = config.max_num_seqs
    roomy = replace(workload, config=replace(config, max_queue=max(config.max_queue, 2 * backlog)))
    return Simulation(roomy, BackloggedCrowd(roomy, backlog)).run().goodput


def run_alone(workload: Workload, name: str, scale: float = 1.0) -> Outcome:
    """A group's users without all others, asking `scale` times as often as is written. Raises KeyError."""
    group = {group.name: group for group in workload.groups}[name]
    return Simulation(alone := replace(workload, groups=(group,)), TimedCrowd(alone, scale)).run()


def study(workload: Workload, loads: Sequence[float] = ()) -> Study:
    """Run a workload at each load; as it is written where none is given."""
    most = capacity(workload)
    as_written = workload.offered / most
    outcomes = [
        LoadOutcome(load, Simulation(workload, TimedCrowd(workload, load / as_written)).run())
        for load in loads or [as_written]
    ]
    return Study(most, tuple(outcomes))
