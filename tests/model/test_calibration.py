"""What decodes cost is measured on the real library, and automatic speculation on it changes no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from forerun import Engine, SamplingParams
from forerun.compose import build, calibrate
from forerun.engine_config import EngineConfig
from forerun.native.calibration import Calibration
from forerun.native.model import LlamaModel
from tests.model.conftest import MakeContext

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


def test_rows_beyond_those_that_can_have_logits_are_measured_without(
    make_context: MakeContext, dense: LlamaModel
) -> None:
    context = make_context(dense, n_ctx=512, max_logit_rows=12)
    seen: set[tuple[int, int]] = set()
    context.after_decode = lambda batch: seen.add((batch.rows, batch.outputs))
    curve = Calibration(context).measure(60.0)  # it takes what it needs
    assert curve.rows[-1] > 12
    assert {(12, 12), (64, 12)} <= seen


def test_rows_are_timed_with_their_logits_and_without(make_context: MakeContext, dense: LlamaModel) -> None:
    context = make_context(dense, n_ctx=512, n_batch=64)
    seen: set[tuple[int, int]] = set()
    context.after_decode = lambda batch: seen.add((batch.rows, batch.outputs))
    curve = Calibration(context).measure(60.0)  # it takes what it needs
    assert {(64, 64), (64, 1)} <= seen
    assert 0 <= 63 * curve.logit_ms < curve.predict(64)


def test_cells_far_behind_are_copied_not_computed(make_context: MakeContext, dense: LlamaModel) -> None:
    context = make_context(dense, n_ctx=4096)
    rows: list[int] = []
    context.after_decode = lambda batch: rows.append(batch.rows)
    calibration = Calibration(context)
    assert calibration._deepen(256, 10.0) == 256
    held = context.state_size(0)
    assert calibration._deepen(2048, 10.0) == 2048
    assert sum(rows) == 64
    assert context.state_size(0) > 7 * held, "they are the sequence's own, so that its rows attend to them"
    calibration._time(64)
    assert context.pos_max(0) == 63


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
