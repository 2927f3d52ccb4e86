"""`forerun bench` against servers of this process, on the fake model."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.bench.measuring import Work
from forerun.bench.results import Comparison, Round, SystemResult, WorkloadResult, write_results
from tests.cli.conftest import Forerun
from tests.server.support import ListeningServer, listening

SMALL = "single:prompt=16,output=6"


@pytest.fixture(scope="module")
def server() -> Iterator[ListeningServer]:
    with listening() as server:
        yield server


def test_a_running_server_is_measured_without_being_named_a_command(
    forerun: Forerun, server: ListeningServer, tmp_path: Path
) -> None:
    result = forerun(
        "bench", "--url", server.url, "--rounds", "2", "--output", str(tmp_path), SMALL, "fan-out:shared=40"
    )
    assert result.exit_code == 0, result.stderr
    assert "## single" in result.stdout
    assert "## fan-out" in result.stdout
    assert "against the others" not in result.stdout, "there is one server"
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["settings"]["model"] == "fake", "the server's only one"
    assert [len(one["rounds"]) for one in found["workloads"]] == [2, 2]


def test_two_servers_are_compared_where_they_did_the_same_work(
    forerun: Forerun, server: ListeningServer, tmp_path: Path
) -> None:
    urls = ("--url", f"theirs={server.url}", "--url", f"ours={server.url}/v1")
    result = forerun("bench", "run", *urls, "--rounds", "4", "--output", str(tmp_path), "concurrent:streams=2,output=8")
    assert result.exit_code == 0, result.stderr
    assert "## ours against the others" in result.stdout
    assert "| concurrent 2 | tokens_per_s |" in result.stdout
    for name in ("ratios.svg", "01-concurrent-2.svg"):
        assert ElementTree.fromstring((tmp_path / name).read_text()).tag.endswith("svg")
        assert name in result.stdout
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "concurrent 2" in page


def test_the_report_is_rendered_again_from_results_alone(forerun: Forerun, tmp_path: Path) -> None:
    rounds = tuple(
        {"a": Round({"ttft_ms": 20.0}, Work(9, 2)), "b": Round({"ttft_ms": 10.0}, Work(9, 2))} for _ in range(4)
    )
    same = WorkloadResult("prefill", {"prompt": 9}, "About.", "ttft_ms", rounds=rounds)
    other = tuple({"a": Round({"ttft_ms": 20.0}, Work(8, 2)), "b": one["b"]} for one in rounds)
    workloads = (same, WorkloadResult("single", {}, "About.", "ttft_ms", rounds=other, errors={}))
    write_results(tmp_path, Comparison({}, {}, (SystemResult("a"), SystemResult("b")), workloads))
    result = forerun("bench", "report", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "report.html")
    said = (tmp_path / "report.md").read_text()
    assert "| prefill | ttft_ms | 2.00 (2.00 to 2.00) |" in said
    assert "| single | ttft_ms | none: prompts were not the same: 9 and 8 tokens |" in said


def test_all_workloads_are_listed_with_what_their_figure_says(forerun: Forerun) -> None:
    result = forerun("bench", "--list")
    assert result.exit_code == 0, result.stderr
    assert "fan-out:branches=8,shared=2048,own=32,output=16" in result.stdout
    assert result.stdout.count("primary figure:") >= 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("single",), ("--url", "--compare")),
        (("--url", "http://x", "--compare", "forerun", "single"), ("--url", "--compare")),
        (("--url", "here", "single"), ("--url", "'here'")),
        (("--url", "http://127.0.0.1:9", "walk"), ("'walk'", "single")),
        (("--url", "http://127.0.0.1:9", "single"), ("127.0.0.1:9", "cannot be reached")),
        (("--url", "http://127.0.0.1:9", "--body", "[]", "single"), ("--body", "[]")),
        (("--compare", "forerun", "single"), ("--model",)),
        (("--compare", "forerun,forerun", "--model", "smollm2", "single"), ("named twice",)),
        (("profile",), ("--record",)),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    forerun: Forerun, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = forerun("bench", *arguments)
    assert result.exit_code == 2, result.output
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("forerun: ")
    assert all(word in line for word in words), line


def test_the_group_s_own_help_names_all_commands(forerun: Forerun) -> None:
    result = forerun("bench", "--help")
    for name in ("run", "report", "profile", "cache-sim"):
        assert name in result.stdout
