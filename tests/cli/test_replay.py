"""`forerun serve --record` and `forerun replay`."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.core.request import SamplingParams
from forerun.engine.recording import read_recording
from tests.cli.conftest import Forerun
from tests.engine.test_recording import PROMPT, Recorded


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    to = Recorded(tmp_path / "recording.jsonl")
    to.add("a", PROMPT, SamplingParams(max_tokens=4, ignore_eos=True))
    to.run()
    to.journal.close()
    return to.journal.path


def test_a_replay_says_that_all_is_as_recorded(forerun: Forerun, recording: Path) -> None:
    result = forerun("replay", str(recording))
    assert result.exit_code == 0, result.stderr
    assert "steps of 1 requests were decided again: all as recorded" in result.stdout


def test_steps_are_shown_in_words(forerun: Forerun, recording: Path) -> None:
    result = forerun("replay", str(recording), "--show")
    assert "session 1, step 1 at 1.000" in result.stdout
    assert "    prefill 0 at 0: 16 tokens" in result.stdout


def test_a_replay_that_goes_another_way_shows_where_and_ends_with_1(forerun: Forerun, recording: Path) -> None:
    recording.write_bytes(recording.read_bytes().replace(b'"max_num_batched_tokens":16', b'"max_num_batched_tokens":8'))
    result = forerun("replay", str(recording))
    assert result.exit_code == 1
    assert "step 1 of session 1 is another one now" in result.stdout
    assert "    prefill 0 at 0: 8 tokens" in result.stdout


def test_a_result_that_makes_no_sense_is_told_in_a_line(forerun: Forerun, recording: Path) -> None:
    recording.write_bytes(recording.read_bytes().replace(b'"sequences":{"0"', b'"sequences":{"7"'))
    result = forerun("replay", str(recording))
    assert result.exit_code == 2
    assert "the scheduler failed" in result.stderr
    assert "Traceback" not in result.stderr


def test_what_is_no_recording_is_refused(forerun: Forerun, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("hello\n")
    result = forerun("replay", str(path))
    assert result.exit_code == 2
    assert "is no recording: line 1" in result.stderr


def test_a_recording_that_is_there_is_not_written_over(forerun: Forerun, recording: Path) -> None:
    before = len(list(read_recording(recording)))
    result = forerun("serve", "smollm2", "--record", str(recording))
    assert result.exit_code == 2
    assert "is there already: give another name" in result.stderr
    assert len(list(read_recording(recording))) == before


def test_text_is_recorded_in_a_recording_only(forerun: Forerun) -> None:
    result = forerun("serve", "smollm2", "--record-text")
    assert result.exit_code == 2
    assert "record_text: there is no recording to write text to" in result.stderr
