"""`forerun bench profile` of what an engine recorded."""

from __future__ import annotations

import json
from pathlib import Path

from forerun.cli.bench_profile import recorded_steps
from forerun.core.request import SamplingParams
from forerun.engine.recording import Line, Plan, Result, read_recording
from tests.cli.conftest import Forerun
from tests.engine.test_recording import PROMPT, Recorded


def recorded(folder: Path) -> Path:
    to = Recorded(folder / "recording.jsonl")
    to.add("a", PROMPT, SamplingParams(max_tokens=4, ignore_eos=True))
    to.run()
    to.add("b", PROMPT[:5], SamplingParams(max_tokens=3, ignore_eos=True))
    to.run()
    to.journal.close()
    return to.journal.path


def test_a_recording_is_shown_by_kinds_of_steps_and_as_a_trace(forerun: Forerun, tmp_path: Path) -> None:
    chrome = tmp_path / "trace.json"
    result = forerun("bench", "profile", str(recorded(tmp_path)), "--chrome", str(chrome))
    assert result.exit_code == 0, result.stderr
    for word in ("1 stream", "prompts", "all", "schedule", "between"):
        assert word in result.stdout, result.stdout
    steps = [event for event in json.loads(chrome.read_text())["traceEvents"] if event["name"] == "step"]
    assert f"{len(steps)} steps" in result.stderr
    assert steps[0]["args"]["prefill"] > 0


def test_deciding_and_learning_are_measured_without_the_recording_itself(tmp_path: Path) -> None:
    lines = list(read_recording(recorded(tmp_path)))
    assert all(line.took > 0 for line in lines if isinstance(line, Plan | Result))
    steps = list(recorded_steps(lines))
    assert len(steps) == sum(isinstance(line, Result) for line in lines)
    assert all(step.schedule > 0 and step.update > 0 for step in steps)


def test_time_in_which_nobody_waits_is_no_step_s(tmp_path: Path) -> None:
    lines: list[Line] = list(read_recording(recorded(tmp_path)))
    steps = list(recorded_steps(lines))
    arrivals = [at for at, line in enumerate(lines) if type(line).__name__ == "Arrival"]
    before_second = sum(isinstance(line, Result) for line in lines[: arrivals[1]])
    assert steps[before_second - 1].between == 0.0
    assert any(step.between > 0 for step in steps)


def test_a_recording_without_steps_is_told(forerun: Forerun, tmp_path: Path) -> None:
    to = Recorded(tmp_path / "recording.jsonl")
    to.journal.close()
    result = forerun("bench", "profile", str(to.journal.path))
    assert result.exit_code == 2
    assert "nothing was evaluated" in result.stderr
