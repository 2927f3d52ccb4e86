"""Cost curves are remembered between runs, and nothing in the file is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.core.costs import CostCurve
from forerun.models.cost_cache import CostCache

CURVE = CostCurve((1, 2, 8), (5.0, 9.5, 30.0), (0.25, 0.5, 2.0), cells=200)


def test_a_curve_is_found_under_its_own_key_alone(tmp_path: Path) -> None:
    cache = CostCache(tmp_path / "forerun" / "costs.json")
    assert cache.get("a") is None
    cache.put("a", CURVE)
    cache.put("b", CostCurve((1,), (1.0,)))
    assert cache.get("a") == CURVE
    assert cache.get("c") is None
    assert (tmp_path / "forerun" / "costs.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"x": 1}', "9" * 400_000])
def test_a_file_that_makes_no_sense_is_empty_and_is_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "costs.json"
    file.write_text(content)
    cache = CostCache(file)
    assert cache.get("a") is None
    cache.put("a", CURVE)
    assert cache.get("a") == CURVE


def test_a_curve_that_makes_no_sense_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    cache = CostCache(file)
    cache.put("a", CURVE)
    file.write_text(file.read_text().replace("5.0", "-5.0"))
    assert cache.get("a") is None


def test_without_a_place_to_keep_them_nothing_is_kept() -> None:
    cache = CostCache(None)
    cache.put("a", CURVE)
    assert cache.get("a") is None
