"""What drafting can bring, worked out by hand from made-up costs."""

from __future__ import annotations

import pytest

from forerun.core.costs import CostCurve
from forerun.core.forecast import DraftingProspect

FLAT = CostCurve((1, 2, 4, 8, 16), (10.0, 10.0, 10.0, 10.0, 10.0))
"""Rows are free, as on a GPU."""
STEEP = CostCurve((1, 2, 4, 8, 16), (10.0, 20.0, 40.0, 80.0, 160.0))
"""Every row costs a step: drafting cannot pay."""
HALF = CostCurve((1, 2, 3), (10.0, 15.0, 20.0))
CHEAP = CostCurve((1,), (1.0,))


def test_where_rows_are_free_certain_drafts_multiply_the_speed() -> None:
    forecast = DraftingProspect(FLAT, None, 7).at(1.0)
    assert forecast.length == 7
    assert forecast.speedup == pytest.approx(8.0)


def test_the_draft_s_own_decodes_are_paid_for() -> None:
    forecast = DraftingProspect(FLAT, CHEAP, 4).at(1.0)
    assert forecast.speedup == pytest.approx(5 * 10 / (10 + 4 * 1))


def test_the_length_is_the_best_one_and_not_the_longest() -> None:
    # One token: 1.5 tokens in 15 ms against 1 in 10; two: 1.75 in 20 ms. Rows at half price break even at one half.
    forecast = DraftingProspect(HALF, None, 2).at(0.5)
    assert forecast.length == 1
    assert forecast.speedup == pytest.approx(1.0)
    assert DraftingProspect(HALF, None, 2).at(0.9).length == 2


def test_break_even_is_where_the_best_length_is_as_fast_as_plain_decoding() -> None:
    assert DraftingProspect(HALF, None, 2).break_even() == pytest.approx(0.5, abs=0.002)
    # With a draft of 1 ms a token: 1 + p tokens in 16 ms.
    assert DraftingProspect(HALF, CHEAP, 1).break_even() == pytest.approx(0.6, abs=0.002)


def test_a_draft_that_costs_as_much_as_the_target_can_only_be_slower() -> None:
    prospect = DraftingProspect(STEEP, STEEP, 8)
    assert prospect.break_even() is None
    assert prospect.at(1.0).speedup < 1


def test_used_cells_make_rows_dearer() -> None:
    curve = CostCurve((1, 2), (10.0, 15.0), ms_per_kilocell=(10.0, 20.0))
    assert DraftingProspect(curve, None, 1, cells=1000).at(1.0).speedup == pytest.approx(2 * 20 / 35)
