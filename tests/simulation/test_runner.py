"""SimulatedRunner against FakeRunner, which keeps every cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.step import FetchSegment, PersistSegment, RestoreSegment, StepPlan, StepResult, StoreSegment
from forerun.core.synthetic import SyntheticAcceptance
from forerun.core.verification import verify
from forerun.simulation.crowd import TimedCrowd
from forerun.simulation.machine import Machine
from forerun.simulation.runner import SimulatedRunner
from forerun.simulation.virtual_time import Simulation
from forerun.simulation.workload import Workload
from forerun.testing import FAKE_SIZES, FakeDrafter, FakeRunner, FakeStore
from tests.simulation.support import CURVE, users, workload

DRAFT = CostCurve((1, 8, 64), (2.0, 3.0, 10.0))
SLOPED = CostCurve(CURVE.rows, CURVE.ms, tuple(0.01 * rows for rows in CURVE.rows), cells=100)


class Compared(SimulatedRunner):
    """Has a FakeRunner do the same, and asserts that both took as long and hold as much."""

    def __init__(self, load: Workload) -> None:
        config, machine = load.config, load.machine
        chance = config.synthetic_acceptance
        acceptance = None if chance is None else SyntheticAcceptance(chance)
        super().__init__(machine, config.n_seq_max, acceptance)
        draft = LiveCosts(machine.draft) if machine.draft else None
        self.fake = FakeRunner(
            config.n_ctx,
            drafter=FakeDrafter(config.n_ctx, 5) if draft else None,
            costs=StepCosts(LiveCosts(machine.target), draft),
            verify=acceptance.verify if acceptance else verify,
            store=FakeStore(),
        )
        self.seen: set[type] = set()
        self.most_accepted = 0

    def execute(self, plan: StepPlan) -> StepResult:
        ours, theirs = super().execute(plan), self.fake.execute(plan)
        assert theirs.failure is None
        assert self.cells.used == self.fake.memory.used
        assert self.rows == self.fake.rows
        assert ours.stored.keys() == theirs.stored.keys()
        assert ours.draft_held == theirs.draft_held
        assert lengths(ours) == lengths(theirs)
        self.most_accepted = max([self.most_accepted, *(own.accepted for own in ours.sequences.values())])
        self.seen |= {type(operation) for operation in plan.operations}
        if not plan.waits_for_store:
            assert ours.elapsed == pytest.approx(theirs.elapsed, abs=1e-9)
        return ours


def lengths(result: StepResult) -> dict[int, tuple[int, int, int]]:
    return {key: (len(own.tokens), own.drafted, own.accepted) for key, own in result.sequences.items()}


def compared(load: Workload) -> tuple[Simulation, Compared]:
    simulation = Simulation(load, TimedCrowd(load))
    runner = Compared(load)
    simulation.runner = runner
    return simulation, runner


def talkers(**changes: Any) -> Workload:
    """Six users whose conversations need more room than there is."""
    group = users(
        count=6, turns=3, think_seconds=0.5, system_tokens=40, message_tokens=[20, 200], answer_tokens=[5, 40]
    )
    usual: dict[str, Any] = {"n_ctx": 700, "seconds": 15.0, "machine": Machine(SLOPED, DRAFT, FAKE_SIZES, 1e30)}
    return workload(group, **usual | changes)


def test_it_takes_as_long_and_holds_as_much_as_the_fake_runner() -> None:
    simulation, _ = compared(talkers())
    outcome = simulation.run()
    assert outcome.groups[0].finished > 20
    assert outcome.evicted > 0


def test_drafts_take_as_long_and_are_accepted_as_often_with_and_without_a_draft_model() -> None:
    for draft_n_ctx in (700, 0):
        load = talkers(speculation=4, synthetic_acceptance=0.7, draft_n_ctx=draft_n_ctx)
        if not draft_n_ctx:
            load = replace(load, machine=replace(load.machine, draft=None))
        simulation, runner = compared(load)
        outcome = simulation.run()
        assert outcome.groups[0].finished > 20
        assert runner.most_accepted > 1


def test_prefixes_go_to_host_memory_and_come_back() -> None:
    simulation, runner = compared(talkers(cache_ram=10_000_000))
    simulation.run()
    assert {StoreSegment, RestoreSegment} <= runner.seen


def test_a_disk_answers_when_it_is_done_and_does_one_thing_at_a_time() -> None:
    machine = Machine(CURVE, sizes=FAKE_SIZES, copying=1e30, disk=24_000)
    load = talkers(machine=machine, cache_ram=12_000, cache_disk=1_000_000)
    simulation = Simulation(load, TimedCrowd(load))
    outcome = simulation.run()
    assert outcome.groups[0].finished == outcome.groups[0].requests
    runner = SimulatedRunner(machine, 4)
    runner._bytes = {"a": 24_000, "b": 12_000}
    plan = StepPlan(1.0, (PersistSegment("a"), FetchSegment("b")), waits_for_store=True)
    result = runner.execute(plan)
    assert (result.elapsed, [event.key for event in result.store_events]) == (1.0, ["a"])
    again = runner.execute(StepPlan(2.0, waits_for_store=True))
    assert (again.elapsed, [event.key for event in again.store_events]) == (0.5, ["b"])
