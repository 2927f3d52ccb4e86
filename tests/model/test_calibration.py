"""What decodes cost is measured on the real library, and automatic speculation on it changes no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun import Engine, SamplingParams
from forerun.compose import calibrate
from forerun.engine_config import EngineConfig

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_more_rows_cost_more_and_the_curve_is_remembered(tiny_dense_path: Path, cache_folder: Path) -> None:
    config = EngineConfig(model=str(tiny_dense_path), n_ctx=512, n_threads=1)
    ((path, curve),) = calibrate(config)
    assert path == tiny_dense_path
    assert curve.rows[:4] == (1, 2, 3, 4)
    assert curve.predict(64) > curve.predict(1) > 0
    assert curve.predict(1, cells=1000) >= curve.predict(1)
    assert (cache_folder / "forerun" / "costs.json").exists()
    assert calibrate(config) == [(path, curve)], "measured once"


@pytest.mark.parametrize("draft", ["none", "target", "poor"])
def test_automatic_speculation_answers_as_none_does(
    tiny_dense_path: Path, tiny_poor_draft_path: Path, draft: str
) -> None:
    prompts = [[5, 6, 7, 8] * 8, list(range(100, 160)), [9, 9, 9, 9, 9]]
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    drafts = {"none": None, "target": str(tiny_dense_path), "poor": str(tiny_poor_draft_path)}

    def answers(**options: Any) -> list[tuple[int, ...]]:
        with Engine.load(str(tiny_dense_path), n_ctx=1024, n_threads=1, reuse_prefixes=False, **options) as engine:
            return [next(engine.generate(prompt, params)).token_ids for prompt in prompts]

    # One at a time on a tiny model with well-separated logits: equal, not only within rounding.
    assert answers(draft=drafts[draft], speculation="auto") == answers(speculation=0)
