"""What decodes cost is measured on the real library, and automatic speculation on it changes no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from forerun import Engine, SamplingParams
from forerun.compose import build, calibrate
from forerun.engine_config import EngineConfig
from forerun.native.calibration import Calibration
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel

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


@pytest.mark.parametrize(("target", "measured"), [(None, False), ("auto", True), (80.0, True)])
def test_costs_are_measured_where_a_latency_is_to_be_kept_to(
    tiny_dense_path: Path, cache_folder: Path, target: float | Literal["auto"] | None, *, measured: bool
) -> None:
    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "reuse_prefixes": False}
    config = EngineConfig(model=str(tiny_dense_path), target_itl_ms=target, **options)
    parts = build(config)
    try:
        assert (cache_folder / "forerun" / "costs.json").exists() == measured
        assert parts.scheduler.budget.target_ms == {None: None, "auto": 50, 80.0: 80}[target]
    finally:
        parts.runner.close()
        parts.dispose()
    if measured:
        known = build(EngineConfig(model=str(tiny_dense_path), **options))
        assert known.scheduler.budget.target_ms == 50, "a curve that is known is used"
        known.runner.close()
        known.dispose()


def test_no_more_rows_are_measured_than_can_have_logits(tiny_dense_path: Path) -> None:
    model = LlamaModel.load(tiny_dense_path, n_gpu_layers=0)
    params = ContextParams(n_ctx=512, n_seq_max=2, max_logit_rows=6, n_threads=1, n_threads_batch=1)
    context = LlamaContext(model, params)
    assert Calibration(context).measure(0.2).rows[-1] <= 6
    context.close()
    model.close()


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
