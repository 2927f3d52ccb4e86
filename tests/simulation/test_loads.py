"""Loads as multiples of what the engine can give."""

from __future__ import annotations

import pytest

from forerun.simulation.loads import capacity, run_alone, study
from tests.simulation.support import users, workload


def test_half_of_what_the_engine_can_give_is_asked_for_and_given() -> None:
    load = workload(users(arrivals="open", count=20, every_seconds=5.0, answer_tokens=20), seconds=40.0)
    most = capacity(load)
    (half,) = study(load, [0.5]).outcomes
    assert half.outcome.goodput == pytest.approx(most / 2, rel=0.15)
    (as_written,) = study(load).outcomes
    assert as_written.load == pytest.approx(load.offered / most)


def test_what_the_engine_can_give_does_not_depend_on_who_is_important_or_patient() -> None:
    def crowd(priority: int, patience: float | None) -> float:
        groups = [users(name=name, count=5, answer_tokens=30) for name in ("first", "second")]
        changed = groups[0].model_copy(update={"priority": priority, "patience_seconds": patience})
        return capacity(workload(changed, groups[1]))

    assert crowd(3, 0.001) == crowd(0, None)


def test_a_group_alone_does_not_wait_for_others() -> None:
    few, many = users(name="few", count=2), users(name="many", count=30, every_seconds=0.5, answer_tokens=50)
    load = workload(few, many, seconds=20.0)
    (busy,) = study(load, [2.0]).outcomes
    alone = run_alone(load, "few")
    assert [group.name for group in alone.groups] == ["few"]
    assert alone.group("few").ttft.p95 < busy.outcome.group("few").ttft.p95
    with pytest.raises(KeyError, match="nobody"):
        run_alone(load, "nobody")
