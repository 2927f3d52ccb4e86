"""`forerun simulate`, and the costs that `forerun calibrate` writes for it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forerun.core.costs import CostCurve
from tests.cli.conftest import Forerun

TEXT = """
[simulation]
seconds = 20
[machine.target]
rows = [1, 8, 64]
ms = [10, 14, 40]
[engine]
n_ctx = 2000
[[users]]
name = "talkers <1>"
count = 3
every_seconds = 2
message_tokens = [50, 100]
answer_tokens = 10
[[users]]
name = "askers"
count = 2
every_seconds = 2
message_tokens = 20
answer_tokens = 5
"""


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "workload.toml"
    path.write_text(TEXT)
    return str(path)


def test_each_load_and_group_has_a_row_and_its_figures(forerun: Forerun, workload: str, tmp_path: Path) -> None:
    output, plot = tmp_path / "figures.json", tmp_path / "loads.svg"
    options = ("--load", "1, 0.2", "--output", str(output), "--plot", str(plot))
    result = forerun("simulate", workload, *options)
    assert result.exit_code == 0, result.stderr
    assert "5 users, 20 s" in result.stdout
    assert result.stdout.count("talkers <1>") == 2
    figures = json.loads(output.read_text())
    assert [one["load"] for one in figures["loads"]] == [0.2, 1.0]
    calm, busy = figures["loads"]
    assert calm["goodput"] < busy["goodput"]
    assert calm["groups"][0]["ttft"]["p95"] < busy["groups"][0]["ttft"]["p95"]
    words = [
        element.text for element in ElementTree.fromstring(plot.read_text()).iter() if element.tag.endswith("text")
    ]
    assert {"talkers <1>", "askers", "the most the engine gives", "95 of 100 first tokens come within (ms)"} <= {*words}


def test_one_run_is_drawn_over_time_and_another_seed_is_another_run(
    forerun: Forerun, workload: str, tmp_path: Path
) -> None:
    plot = tmp_path / "time.svg"
    first = forerun("simulate", workload, "--plot", str(plot))
    assert first.exit_code == 0, first.stderr
    words = [
        element.text for element in ElementTree.fromstring(plot.read_text()).iter() if element.tag.endswith("text")
    ]
    assert {"running", "waiting", "tokens a second", "seconds"} <= {*words}
    assert forerun("simulate", workload).stdout == first.stdout
    assert forerun("simulate", workload, "--seed", "7").stdout != first.stdout


def test_costs_of_another_machine_stand_in_for_the_workloads(
    forerun: Forerun, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = CostCurve((1, 8, 64), (100.0, 140.0, 400.0))
    monkeypatch.setattr("forerun.cli.calibrate.calibrate", lambda _: [(Path("m.gguf"), slow)])
    costs, output = tmp_path / "costs.json", tmp_path / "figures.json"
    assert forerun("calibrate", "m.gguf", "--output", str(costs)).exit_code == 0
    capacities: list[float] = []
    for options in ((), ("--costs", str(costs))):
        result = forerun("simulate", workload, "--output", str(output), *options)
        assert result.exit_code == 0, result.stderr
        capacities.append(json.loads(output.read_text())["capacity_tokens_per_second"])
    assert capacities[1] == pytest.approx(capacities[0] / 10, rel=0.2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--load", "lots"), "--load: holds numbers such as 0.5,1,2, got 'lots'"),
        (("--load", "0"), "--load: must lie between 0.001 and 1000, got 0"),
        (("--load", "nan"), "--load: must lie between 0.001 and 1000, got nan"),
        (("--load", ",".join(map(str, range(1, 52)))), "--load: takes at most 50 loads, got 51"),
        (("--plot", "loads.png"), "name it loads.svg, got 'loads.png'"),
        (("--costs", "/nowhere.json"), "/nowhere.json"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    forerun: Forerun, workload: str, options: tuple[str, ...], words: str
) -> None:
    result = forerun("simulate", workload, *options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_a_field_that_is_wrong_is_told_in_one_line(forerun: Forerun, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(TEXT.replace("count = 3", "count = -3"))
    result = forerun("simulate", str(path))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line == "forerun: users[0].count: input should be greater than or equal to 1, got -3"
