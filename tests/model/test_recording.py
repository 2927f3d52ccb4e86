"""An engine on a real model is recorded, and replayed without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun import SamplingParams
from forerun.engine.recording import read_recording
from forerun.testing.replay import Replay
from tests.model.serving import answers, serving, some_tokens

pytestmark = pytest.mark.model


def test_an_engine_with_a_draft_model_and_a_disk_is_replayed_step_for_step(
    tiny_dense_path: Path, tiny_medium_draft_path: Path, tmp_path: Path
) -> None:
    recording = tmp_path / "recording.jsonl"
    options = {"draft": str(tiny_medium_draft_path), "cache_ram": 2**26, "cache_dir": str(tmp_path / "kv")}
    shared = some_tokens(300, seed=1)
    prompts = [[*shared, *some_tokens(20 + index, seed=index)] for index in range(4)]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    for _ in range(2):  # the second engine finds what the first one left on disk
        with serving(tiny_dense_path, n_ctx=700, record=str(recording), speculation=4, **options) as engine:
            answers(engine, prompts, params)
            answers(engine, [[*prompt, 7] for prompt in prompts], params)
    steps = list(Replay(lambda: read_recording(recording)))
    assert {step.session for step in steps} == {1, 2}
    assert [step for step in steps if not step.is_same] == []
    assert any(line.startswith("draft ") for step in steps for line in step.lines)
