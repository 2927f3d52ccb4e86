"""`forerun calibrate`, with curves made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.compose import EngineConfig
from forerun.core.costs import CostCurve
from tests.cli.conftest import Forerun


def test_curves_are_shown_as_tables_and_always_measured_anew(forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineConfig] = []

    def calibrate(config: EngineConfig) -> list[tuple[Path, CostCurve]]:
        asked.append(config)
        return [(Path("m.gguf"), CostCurve((1, 8), (5.0, 20.0), 0.5)), (Path("d.gguf"), CostCurve((1,), (2.0,)))]

    monkeypatch.setattr("forerun.cli.calibrate.calibrate", calibrate)
    result = forerun("calibrate", "m.gguf", "--draft", "d.gguf")
    assert result.exit_code == 0
    assert [config.recalibrate for config in asked] == [True]
    for shown in ("m.gguf", "d.gguf", "20.0", "2.50", "0.50 ms more a row"):
        assert shown in result.stdout
    bars = [line.count("█") for line in result.stdout.splitlines() if "█" in line]
    assert bars == [40, 20, 40], "a row among eight costs half of a lone one"


def test_speculation_is_automatic_off_or_a_number(forerun: Forerun) -> None:
    result = forerun("run", "m.gguf", "ab", "--speculation", "sometimes")
    assert result.exit_code == 2
    assert "'auto', 'off' or a whole number" in " ".join(result.stderr.replace("│", " ").split())
