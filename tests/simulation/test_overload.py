"""Issue 6: 64 users who ask for twice what the engine can give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.simulation.crowd import TimedCrowd
from forerun.simulation.loads import capacity
from forerun.simulation.outcome import Outcome
from forerun.simulation.virtual_time import Simulation
from forerun.simulation.workload import Workload
from tests.simulation.support import users, workload

HURRIED, PATIENT = "hurried", "patient"


def crowd(*, arrivals: str) -> Workload:
    """64 users of a machine on which rows come cheaper together: 8 are in a hurry, 56 can wait."""
    hurried = users(
        name=HURRIED,
        count=8,
        priority=1,
        arrivals=arrivals,
        every_seconds=20,
        message_tokens=[150, 500],
        answer_tokens=[10, 40],
    )
    patient = users(
        name=PATIENT,
        count=56,
        arrivals=arrivals,
        every_seconds=20,
        turns=[1, 3],
        think_seconds=5,
        system_tokens=200,
        message_tokens=[100, 500],
        answer_tokens=[20, 80],
    )
    return workload(hurried, patient, seconds=120.0, n_ctx=8192, max_num_seqs=16)


@pytest.fixture(scope="module", params=["closed", "open"])
def overload(request: pytest.FixtureRequest) -> tuple[Workload, float, Outcome]:
    load = crowd(arrivals=request.param)
    most = capacity(load)
    return load, most, Simulation(load, TimedCrowd(load, 2 * most / load.offered)).run()


def test_goodput_stays_near_what_the_engine_can_give(overload: tuple[Workload, float, Outcome]) -> None:
    _, most, outcome = overload
    assert outcome.goodput >= 0.9 * most


def test_who_is_in_a_hurry_waits_at_most_twice_as_long_as_in_an_empty_engine(
    overload: tuple[Workload, float, Outcome],
) -> None:
    load, _, outcome = overload
    alone = replace(load, groups=load.groups[:1])
    calm = Simulation(alone, TimedCrowd(alone)).run()
    assert calm.busy < 0.3
    assert outcome.group(HURRIED).ttft.p95 <= 2 * calm.group(HURRIED).ttft.p95


def test_nobody_starves(overload: tuple[Workload, float, Outcome]) -> None:
    """All get their answers, and nobody waits much longer than the queue in front of them takes to be answered."""
    load, most, outcome = overload
    for group in outcome.groups:
        assert group.finished == group.requests > 40
    longest_queue = max(moment.waiting for moment in outcome.timeline)
    answer = load.offered / sum(group.conversations_per_second * group.turns.mean for group in load.groups)
    assert outcome.group(PATIENT).ttft.most <= 2 * longest_queue * answer / most
