"""Measured cost curves, and how they follow the machine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.costs import CostCurve, LiveCosts

CURVE = CostCurve(rows=(1, 2, 4, 8, 16), ms=(10.0, 20.0, 30.0, 50.0, 55.0), ms_per_kilocell=(1.0, 2.0, 3.0, 6.0, 8.0))


def test_measured_points_are_given_back_and_what_lies_between_is_interpolated() -> None:
    assert [CURVE.predict(rows) for rows in (1, 2, 4, 8, 16)] == list(CURVE.ms)
    assert CURVE.predict(3) == 25.0
    assert CURVE.predict(6) == 40.0


def test_beyond_the_last_point_a_row_costs_what_it_cost_there() -> None:
    assert CURVE.predict(32) == 110.0


def test_used_cells_cost_more_as_measured_for_so_many_rows() -> None:
    assert CURVE.predict(4, cells=2000) == 30.0 + 2 * 3.0
    assert CURVE.predict(6, cells=1000) == 40.0 + 4.5
    assert CURVE.predict(32, cells=1000) == 2 * (55.0 + 8.0)


def test_points_belong_to_the_cells_they_were_measured_over() -> None:
    deep = CostCurve((1, 2), (10.0, 15.0), (4.0, 8.0), cells=500)
    assert deep.predict(2, cells=500) == 15.0
    assert deep.predict(1, cells=250) == 9.0
    assert deep.predict(2, cells=1500) == 23.0
    assert CostCurve((1,), (10.0,), (100.0,), cells=500).predict(1) == 5.0, "no less than half"


PRICED = CostCurve(CURVE.rows, CURVE.ms, CURVE.ms_per_kilocell, logit_ms=1.0)
"""The same where logits of a row have a price."""


def test_rows_without_logits_cost_less() -> None:
    assert PRICED.predict(16) == PRICED.predict(16, logits=16) == PRICED.predict(16, logits=40) == 55.0
    assert PRICED.predict(16, logits=1) == 40.0
    assert PRICED.predict(16, cells=1000, logits=6) == 55.0 + 8.0 - 10.0
    assert CURVE.predict(16, logits=1) == 55.0, "where the price is not known they cost the same"
    assert CostCurve((1, 8), (10.0, 20.0), logit_ms=5.0).predict(8, logits=1) == 10.0, "no less than half"


def test_a_step_without_logits_teaches_what_one_with_them_costs() -> None:
    costs = LiveCosts(PRICED)
    for _ in range(80):
        costs.observe(16, 0, 80.0, logits=1)
    assert costs.predict(16, logits=1) == pytest.approx(80.0, rel=0.01)
    assert costs.predict(16) == pytest.approx(110.0, rel=0.01)


@given(st.integers(1, 40), st.integers(0, 3000), st.none() | st.integers(0, 50))
def test_all_rows_at_once_are_predicted_as_each_alone(most: int, cells: int, logits: int | None) -> None:
    rows = np.arange(1, most + 1)
    alone = [PRICED.predict(int(count), cells, logits=logits) for count in rows]
    assert PRICED.predict_all(rows, cells, logits=logits) == pytest.approx(alone)


def test_no_rows_cost_nothing() -> None:
    assert CURVE.predict(0, cells=5000) == LiveCosts(CURVE).predict(0) == 0.0


@pytest.mark.parametrize(
    ("rows", "ms"), [((), ()), ((2, 3), (1.0, 2.0)), ((1, 2), (1.0,)), ((1, 3, 2), (1.0, 2.0, 3.0)), ((1,), (0.0,))]
)
def test_points_that_are_no_curve_are_refused(rows: tuple[int, ...], ms: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"curve|ascend|positive"):
        CostCurve(rows, ms)


def test_a_curve_survives_json() -> None:
    assert CostCurve.from_json(json.loads(json.dumps(PRICED.as_json()))) == PRICED


@given(st.floats(0.3, 3.0), st.sampled_from([1, 3, 8, 16]))
def test_predictions_follow_a_machine_that_changed(factor: float, rows: int) -> None:
    costs = LiveCosts(CURVE)
    for _ in range(80):
        costs.observe(rows, 1000, CURVE.predict(rows, 1000) * factor)
    assert costs.predict(rows, 1000) == pytest.approx(CURVE.predict(rows, 1000) * factor, rel=0.02)
    assert costs.predict(2) == pytest.approx(CURVE.predict(2) * factor, rel=0.25), "unseen stretches follow"
    for _ in range(800):
        costs.observe(rows, 1000, CURVE.predict(rows, 1000) * factor)
    assert costs.predict(2) == pytest.approx(CURVE.predict(2) * factor, rel=0.02)


def test_one_disturbed_step_moves_little() -> None:
    costs = LiveCosts(CURVE)
    costs.observe(4, 0, 100_000.0)
    assert costs.predict(4) <= 30.0 * 1.31
    assert costs.predict(0) == 0


def test_a_stretch_that_was_seen_keeps_its_own_correction() -> None:
    costs = LiveCosts(CURVE)
    for _ in range(200):
        costs.observe(1, 0, 10.0)
        costs.observe(8, 0, 100.0)
    assert costs.predict(1) == pytest.approx(10.0, rel=0.1)
    assert costs.predict(8) == pytest.approx(100.0, rel=0.1)


def test_what_seemed_dear_in_a_bad_moment_is_tried_again() -> None:
    costs = LiveCosts(CURVE)
    for _ in range(20):
        costs.observe(8, 0, 2 * CURVE.predict(8))
    assert costs.predict(8) > 1.5 * CURVE.predict(8)
    for _ in range(60):
        costs.observe(4, 0, CURVE.predict(4))
    assert costs.predict(4) == pytest.approx(CURVE.predict(4), rel=0.01)
    assert costs.predict(8) < 1.5 * CURVE.predict(8), "most of it was the machine"
    for _ in range(2000):
        costs.observe(4, 0, CURVE.predict(4))
    assert costs.predict(8) < 1.05 * CURVE.predict(8)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.sampled_from([0, 300, 5000]))
def test_many_row_counts_at_once_cost_what_each_alone_does(rows: list[int], cells: int) -> None:
    costs = LiveCosts(CURVE)
    for seen in (1, 3, 20):
        costs.observe(seen, 100, 2.0 * CURVE.predict(seen, 100))
    for source in (CURVE, costs):
        together = source.predict_all(np.array(rows), cells)
        assert together.tolist() == pytest.approx([source.predict(count, cells) for count in rows])
