"""What users see, in cases that can be counted by hand, and what must hold in all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.step import StepPlan
from forerun.errors import EngineError
from forerun.simulation.crowd import TimedCrowd
from forerun.simulation.machine import Machine
from forerun.simulation.outcome import Outcome
from forerun.simulation.virtual_time import Simulation
from forerun.simulation.workload import Workload
from tests.simulation.support import CURVE, users, workload


def run(load: Workload, times: float = 1.0) -> Outcome:
    return Simulation(load, TimedCrowd(load, times)).run()


def test_one_user_alone_waits_for_the_prompt_and_then_for_a_step_a_token() -> None:
    load = workload(users(answer_tokens=11), seconds=20.0, reuse_prefixes=False)
    (group,) = run(load).groups
    assert group.requests == group.finished > 5
    prompt, step = CURVE.predict(100) / 1e3, CURVE.predict(1) / 1e3
    assert (group.ttft.p50, group.ttft.most) == pytest.approx((prompt, prompt))
    assert (group.itl.p50, group.itl.most) == pytest.approx((step, step))
    assert group.tokens_per_second == pytest.approx(11 * group.finished / 20, rel=0.1)


def test_every_step_takes_what_it_takes_beside_the_decode() -> None:
    load = workload(users(answer_tokens=11), machine=Machine(CURVE, overhead_ms=6.0))
    assert run(load).groups[0].itl.most == pytest.approx((CURVE.predict(1) + 6.0) / 1e3)


def test_the_same_seed_is_the_same_run_and_another_one_is_another() -> None:
    load = workload(users(count=5, turns=[1, 3], message_tokens={"median": 50, "p95": 300}), seconds=15.0)
    first = run(load)
    assert run(load) == first
    assert run(replace(load, seed=1)) != first


def test_a_group_computes_its_system_prompt_once_and_a_conversation_what_is_new() -> None:
    load = workload(users(system_tokens=300, message_tokens=100, turns=3), seconds=30.0)
    (group,) = run(load).groups
    assert group.hit_share > 0.7
    assert run(replace(load, config=replace(load.config, reuse_prefixes=False))).groups[0].hit_share == 0


def test_who_lives_in_an_open_group_asks_whatever_became_of_the_last_question() -> None:
    slow = {"answer_tokens": 100, "every_seconds": 0.2}
    closed, opened = (run(workload(users(arrivals=kind, **slow))) for kind in ("closed", "open"))
    assert closed.groups[0].requests < 10
    assert opened.groups[0].requests == pytest.approx(50, abs=20)
    assert max(moment.waiting for moment in closed.timeline) == 0
    assert max(moment.waiting for moment in opened.timeline) > 0


def test_twice_the_load_asks_for_twice_as_much() -> None:
    load = workload(users(arrivals="open", count=20, every_seconds=10.0), seconds=60.0)
    single, double = (run(load, times).groups[0].requests for times in (1.0, 2.0))
    assert single == pytest.approx(120, rel=0.3)
    assert double == pytest.approx(2 * single, rel=0.25)


def test_who_loses_patience_is_gone_and_who_finds_the_queue_full_is_refused() -> None:
    crowd = {"arrivals": "open", "count": 10, "every_seconds": 1.0, "answer_tokens": 100}
    impatient = run(workload(users(patience_seconds=0.5, **crowd), max_num_seqs=1)).groups[0]
    assert impatient.gave_up > 0
    assert impatient.ttft.most <= 0.5 + CURVE.predict(100) / 1e3, "a step is not cut short"
    assert impatient.finished + impatient.gave_up == impatient.requests
    full = run(workload(users(**crowd), max_num_seqs=1, max_queue=3)).groups[0]
    assert full.refused > 0
    assert full.finished + full.refused == full.requests


def test_a_prompt_that_is_too_long_is_refused_and_its_user_asks_again() -> None:
    (group,) = run(workload(users(message_tokens=[50, 200]), n_ctx=100)).groups
    assert group.refused > 0
    assert group.finished > 0


def test_what_arrives_during_the_warm_up_is_not_counted() -> None:
    load = workload(users(), seconds=20.0)
    warm = replace(load, warmup=10.0)
    assert 0 < run(warm).groups[0].requests < run(load).groups[0].requests


def test_a_pool_that_is_too_small_parks_requests_and_says_so() -> None:
    load = workload(users(count=4, every_seconds=0.1, message_tokens=40, answer_tokens=80), n_ctx=256)
    outcome = run(load)
    assert outcome.parked > 0
    assert outcome.groups[0].finished == outcome.groups[0].requests


def test_a_scheduler_that_gets_nowhere_ends_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    load = workload()
    simulation = Simulation(load, TimedCrowd(load))
    monkeypatch.setattr(simulation.scheduler, "schedule", StepPlan)
    with pytest.raises(EngineError, match="plans none"):
        simulation.run()
