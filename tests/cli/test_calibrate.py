"""`forerun calibrate`, with curves made up."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forerun.cli.curve_plot import curve_plot
from forerun.cli.serve_options import ServeOptions
from forerun.core.costs import CostCurve
from forerun.engine_config import EngineConfig
from tests.cli.conftest import Forerun


def test_curves_are_shown_as_tables_and_always_measured_anew(forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineConfig] = []

    def calibrate(config: EngineConfig) -> list[tuple[Path, CostCurve]]:
        asked.append(config)
        return [
            (Path("m.gguf"), CostCurve((1, 8), (5.0, 20.0), (0.5, 4.0), cells=256)),
            (Path("d.gguf"), CostCurve((1,), (2.0,))),
        ]

    monkeypatch.setattr("forerun.cli.calibrate.calibrate", calibrate)
    result = forerun("calibrate", "m.gguf", "--draft", "d.gguf")
    assert result.exit_code == 0
    assert [config.recalibrate for config in asked] == [True]
    for shown in ("m.gguf", "d.gguf", "20.0", "2.50", "0.5 for 1, 4.0 for 8"):
        assert shown in " ".join(result.stdout.split())
    bars = [line.count("█") for line in result.stdout.splitlines() if "█" in line]
    assert bars == [40, 20, 40], "a row among eight costs half of a lone one"
    assert "m.gguf: a token every 250 ms beside others' prompts" in " ".join(result.stderr.split())


def test_speculation_is_automatic_off_or_a_number(forerun: Forerun) -> None:
    result = forerun("run", "m.gguf", "ab", "--speculation", "sometimes")
    assert result.exit_code == 2
    assert "'auto', 'off' or a whole number" in " ".join(result.stderr.replace("│", " ").split())


def test_a_target_latency_is_auto_or_milliseconds(forerun: Forerun) -> None:
    result = forerun("serve", "m.gguf", "--target-itl-ms", "soon")
    assert result.exit_code == 2
    assert "'auto' or milliseconds, for instance 400, got 'soon'" in " ".join(result.stderr.replace("│", " ").split())
    assert ServeOptions().target_itl_ms == "auto", "a server measures what it has to keep to"


TARGET = CostCurve(
    (1, 2, 4, 8, 16, 32, 64),
    (5.3, 11.1, 15.6, 23.9, 38.8, 74.7, 182.0),
    tuple(0.3 * rows for rows in (1, 2, 4, 8, 16, 32, 64)),
)
DRAFT = CostCurve((1, 2, 4, 8, 16), (1.1, 1.3, 1.8, 3.0, 5.1))


def shapes(drawn: str, kind: str) -> list[ElementTree.Element]:
    return [element for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith(f"}}{kind}")]


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (place.split(",") for place in line.attrib["points"].split())]


def test_a_plot_has_both_curves_the_break_even_line_and_units_on_its_axes() -> None:
    drawn = curve_plot([("large & slow.gguf", TARGET), ("small.gguf", DRAFT)])
    words = [element.text for element in shapes(drawn, "text")]
    for expected in (
        "time of one decode (ms)",
        "rows of one decode (tokens evaluated together)",
        "large & slow.gguf",
        "small.gguf",
        "large & slow.gguf after drafting",
        "break-even: as many plain steps of large & slow.gguf",
        "64",
        "100",
    ):
        assert expected in words
    assert len(shapes(drawn, "circle")) == 7 + 5 + 7


def test_a_curve_lies_below_the_break_even_line_where_rows_come_cheaper_together() -> None:
    lines = [points(line) for line in shapes(curve_plot([("m", TARGET)]), "polyline")]
    break_even, curve = (line for line in lines if len(line) == 7)
    assert curve[0] == break_even[0], "one row is one plain step"
    assert curve[1][1] < break_even[1][1], "two rows cost more than two steps: higher up, so a smaller y"
    assert all(own[1] > plain[1] for own, plain in zip(curve[2:], break_even[2:], strict=True))
    steps = [right[0] - left[0] for left, right in itertools.pairwise(curve)]
    assert steps == pytest.approx([steps[0]] * 6, abs=0.2), "a doubling is as long everywhere"


@pytest.mark.parametrize("curve", [CostCurve((1,), (2.0,)), CostCurve((1, 2), (0.001, 900.0))], ids=["a point", "wide"])
def test_any_curve_can_be_drawn_within_the_drawing(curve: CostCurve) -> None:
    for line in shapes(curve_plot([("m", curve)]), "polyline"):
        assert all(0 <= x <= 760 and 0 <= y <= 480 for x, y in points(line))


def test_the_plot_is_written_where_it_is_asked_for(
    forerun: Forerun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("forerun.cli.calibrate.calibrate", lambda _: [(Path("m.gguf"), TARGET)])
    result = forerun("calibrate", "m.gguf", "--plot", str(tmp_path / "costs.svg"))
    assert result.exit_code == 0
    assert "costs.svg" in result.stderr.replace("\n", "")
    assert (tmp_path / "costs.svg").read_text() == curve_plot([("m.gguf", TARGET)])
    result = forerun("calibrate", "m.gguf", "--plot", "costs.png")
    assert result.exit_code == 2
    assert "name it costs.svg, got 'costs.png'" in " ".join(result.stderr.replace("│", " ").split())
    result = forerun("calibrate", "m.gguf", "--plot", str(tmp_path / "nowhere" / "costs.svg"))
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
