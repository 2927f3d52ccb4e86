"""`forerun bench cache-sim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.bench.trace import Trace, write_trace
from tests.bench.test_cache_sim import conversations
from tests.cli.conftest import Forerun


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl.gz"
    write_trace(path, Trace(tuple(conversations(5, 4, seed=1)), "made up", 1000))
    return str(path)


def test_policies_are_compared_within_each_budget(forerun: Forerun, trace: str, tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    budgets = ("--budget", "100%", "--budget", "40 %", "--budget", "2MB")
    result = forerun("bench", "cache-sim", trace, *budgets, "--policy", "lru, value", "--output", str(output))
    assert result.exit_code == 0, result.stderr
    assert "20 requests" in result.stdout
    figures = json.loads(output.read_text())
    assert [(run["budget"], run["policy"]) for run in figures["runs"]] == [
        (budget, policy) for budget in ("100%", "40 %", "2MB") for policy in ("lru", "value")
    ]
    assert figures["runs"][0]["share_of_ideal"] == 1.0
    assert figures["runs"][0]["budget_bytes"] == figures["everything_bytes"]
    assert figures["runs"][4]["budget_bytes"] == 2_000_000
    assert figures["runs"][2]["hit_tokens"] < figures["ideal_tokens"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "much"), ("--budget", "'much'")),
        (("--budget", "-5%"), ("--budget",)),
        (("--policy", "mru"), ("--policy", "'mru'", "value, lru, fifo")),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    forerun: Forerun, trace: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = forerun("bench", "cache-sim", trace, *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_a_file_that_is_no_trace_is_refused_in_one_line(forerun: Forerun, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("hello")
    result = forerun("bench", "cache-sim", str(tmp_path / "t"))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("forerun: ")
    assert "is no trace" in line
