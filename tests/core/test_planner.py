"""Rows of one step: decode first, media whole, everybody's turn within a bounded number of steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.planner import BatchPlanner, PrefillDemand

demand_lists = st.lists(
    st.builds(PrefillDemand, st.integers(0, 7), st.integers(1, 40), st.booleans()),
    max_size=8,
    unique_by=lambda demand: demand.key,
)
planners = st.builds(BatchPlanner, quantum=st.integers(1, 12))


@given(planners, st.lists(st.tuples(demand_lists, st.integers(0, 32)), max_size=6))
def test_a_budget_is_exceeded_by_a_lone_media_span_only(
    planner: BatchPlanner, steps: list[tuple[list[PrefillDemand], int]]
) -> None:
    for demands, budget in steps:
        granted = planner.share(demands, budget)
        asked = {demand.key: demand for demand in demands}
        for key, rows in granted.items():
            assert 1 <= rows <= asked[key].rows
            assert rows == asked[key].rows or not asked[key].whole, "a media span was cut"
        if sum(granted.values()) > budget:
            (key,) = granted
            assert asked[key].whole
        if budget <= 0:
            assert not granted


@given(planners, demand_lists, st.integers(1, 32))
def test_no_row_is_left_over_that_text_could_use(
    planner: BatchPlanner, demands: list[PrefillDemand], budget: int
) -> None:
    granted = planner.share(demands, budget)
    left = budget - sum(granted.values())
    unserved = [d for d in demands if not d.whole and granted.get(d.key, 0) < d.rows]
    assert left <= 0 or not unserved


@given(planners, demand_lists.filter(bool), st.integers(1, 32))
def test_everybody_is_served_within_as_many_steps_as_there_are_demands(
    planner: BatchPlanner, demands: list[PrefillDemand], budget: int
) -> None:
    """The hardest case: all demands stay as they are for ever, as if the same kind of work kept coming in."""
    planner.share([PrefillDemand(3, 5)], budget)
    unserved = {demand.key for demand in demands}
    for _ in demands:
        unserved -= planner.share(demands, budget).keys()
    assert not unserved


@given(planners, demand_lists.filter(bool), st.integers(1, 32))
def test_prefill_ends(planner: BatchPlanner, demands: list[PrefillDemand], budget: int) -> None:
    left = {demand.key: demand for demand in demands}
    for _ in range(sum(demand.rows for demand in demands)):
        for key, rows in planner.share(list(left.values()), budget).items():
            demand = left.pop(key)
            if demand.rows > rows:
                left[key] = PrefillDemand(key, demand.rows - rows)
    assert not left


def test_a_media_span_that_never_fits_beside_others_gets_a_step_of_its_own() -> None:
    planner = BatchPlanner(quantum=64)
    demands = [PrefillDemand(1, 10_000), PrefillDemand(2, 576, whole=True), PrefillDemand(3, 10_000)]
    assert [planner.share(demands, 128) for _ in range(3)] == [{1: 128}, {2: 576}, {1: 112, 3: 16}]


def test_an_eighth_of_the_rows_goes_around_in_turns_of_one_quantum() -> None:
    planner = BatchPlanner(quantum=10)
    demands = [PrefillDemand(key, 1000, left=1000 + key) for key in range(4)]
    granted = [planner.share(demands, 160) for _ in range(3)]
    assert granted == [{0: 150, 1: 10}, {0: 140, 2: 10, 3: 10}, {0: 140, 1: 10, 2: 10}]


def test_few_rows_go_around_one_by_one() -> None:
    planner = BatchPlanner(quantum=1)
    demands = [PrefillDemand(key, 1000) for key in range(4)]
    assert [planner.share(demands, 2) for _ in range(3)] == [{0: 1, 1: 1}, {2: 1, 3: 1}, {0: 1, 1: 1}]


def test_of_prompts_that_came_together_most_do_not_wait_for_the_last_one() -> None:
    """In turns alone all eight would end with the last few steps."""
    planner = BatchPlanner(quantum=64)
    left, ends, step = dict.fromkeys(range(8), 512), [], 0
    while left:
        step += 1
        for key, rows in planner.share([PrefillDemand(key, rows) for key, rows in left.items()], 128).items():
            left[key] -= rows
            if not left[key]:
                del left[key]
                ends.append(step)
    assert ends[-1] == 8 * 512 / 128
    assert sum(ends) / 8 < 0.65 * ends[-1]


def test_a_long_prompt_ends_however_many_short_ones_come() -> None:
    planner = BatchPlanner(quantum=64)
    left, steps = 1000, 0
    while left > 0 and steps < 8 * 1000 / (128 / 8):  # an eighth of the rows, for one of eight at a time
        steps += 1
        short = [PrefillDemand((steps + other) % 7, 200) for other in range(3)]
        left -= planner.share([*short, PrefillDemand(7, min(left, 512), left=left)], 128).get(7, 0)
    assert left == 0


def test_a_prompt_alone_takes_the_whole_step() -> None:
    planner = BatchPlanner(quantum=10)
    assert planner.share([PrefillDemand(0, 1000)], 100) == {0: 100}


def test_an_image_takes_as_much_of_the_budget_as_it_takes_time() -> None:
    planner = BatchPlanner(quantum=64)
    demands = [PrefillDemand(1, 40, whole=True, weight=100), PrefillDemand(2, 200)]
    assert planner.share(demands, 120) == {1: 40, 2: 20}
    assert planner.share([*demands, PrefillDemand(3, 40, whole=True, weight=100)], 120) == {3: 40, 2: 20}


def test_higher_priorities_are_read_first_and_the_others_go_on_all_the_same() -> None:
    planner = BatchPlanner(quantum=10)
    demands = [PrefillDemand(0, 1000), PrefillDemand(1, 1000), PrefillDemand(2, 1000, priority=1)]
    assert [planner.share(demands, 20) for _ in range(3)] == [{2: 18, 0: 2}, {2: 18, 1: 2}, {2: 18, 0: 2}]
    few = [planner.share(demands, 4) for _ in range(8)]
    assert few.count({2: 4}) == 7
    assert few.count({1: 4}) == 1
    assert planner.share([PrefillDemand(0, 50), PrefillDemand(2, 5, priority=1)], 20) == {2: 5, 0: 15}


def test_a_turn_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        BatchPlanner(quantum=0)
