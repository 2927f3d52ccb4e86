"""`forerun doctor`: a line a finding, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.doctor.library import Device, Library
from tests.cli.conftest import Forerun

FEATURES = frozenset({"AVX2", "OPENMP"})


@pytest.fixture(autouse=True)
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path / "models"))
    library = Library("0.3.36", FEATURES, devices=(Device("CPU", "A CPU", "cpu", 0, 0),))
    monkeypatch.setattr("forerun.cli.doctor.look_at_library", lambda: library)


def test_each_subject_is_a_line_with_its_verdict(forerun: Forerun, tmp_path: Path) -> None:
    result = forerun("doctor")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok       version     forerun ")
    assert any(
        line.startswith("ok       library     llama-cpp-python 0.3.36, compiled with AVX2, OPENMP") for line in lines
    )
    assert any(f"models      {tmp_path / 'models'}: none pulled, " in line for line in lines)


def test_json_has_the_findings_and_the_facts(forerun: Forerun) -> None:
    found = json.loads(forerun("doctor", "--json").stdout)
    assert {finding["subject"] for finding in found["findings"]} >= {"version", "machine", "threads", "library"}
    assert found["library"]["features"] == sorted(FEATURES)
    assert found["machine"]["cores"] >= 1


def test_a_library_that_cannot_be_used_ends_with_2(forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "forerun.cli.doctor.look_at_library", lambda: Library(None, error="No module named 'llama_cpp'")
    )
    result = forerun("doctor")
    assert result.exit_code == 2
    assert "refused  library     llama-cpp-python, which is not installed: No module named 'llama_cpp'" in result.stdout
