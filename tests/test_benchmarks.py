"""What the benchmarks compute around their measurements."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import plot
from benchmarks.replay import Recording, best_copy_ms, plain_ms
from benchmarks.report import Spread, spread
from benchmarks.speculation import best_at_full_acceptance, compared
from benchmarks.synthetic import replayed_ms
from forerun.bench.passages import COPY, EDITS, PROSE
from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.prompt import PromptLayout
from forerun.core.request import Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.synthetic import SyntheticAcceptance
from forerun.testing import FakeRunner
from tests.core.harness import VOCABULARY

CURVE = CostCurve(
    (1, 2, 4, 8, 16, 32, 64),
    (5.0, 10.0, 15.0, 22.0, 38.0, 74.0, 180.0),
    tuple(0.4 * rows for rows in (1, 2, 4, 8, 16, 32, 64)),
)


def test_there_are_enough_prompts_and_none_comes_twice() -> None:
    assert len(set(PROSE)) >= 12
    assert len(set(COPY)) >= 8
    assert len(set(EDITS)) >= 8


def test_what_a_curve_allows_is_its_best_point_at_full_acceptance() -> None:
    assert best_at_full_acceptance(CostCurve((1, 8, 9, 64), (5.0, 10.0, 40.0, 320.0)), 0) == (7, 4.0)


def test_in_hindsight_a_copy_is_drafted_up_to_where_it_differs() -> None:
    curve = CostCurve((1, 2, 4, 64), (1.0, 1.5, 2.0, 64.0))
    recording = Recording((1, 2, 3, 4, 5), (9, 1, 2, 3, 8, 4, 5))
    assert plain_ms(recording, curve) == 6
    assert best_copy_ms(recording, curve) == 2.0 + 1.5, "1 2 3 drafted and 8 said, then 4 drafted and 5 said"


def test_fixed_lengths_draft_by_lookup_alone_and_with_the_draft_model() -> None:
    assert {options.get("draft") for options in compared(None).values()} == {None}
    drafts = {name: options.get("draft") for name, options in compared("small").items()}
    assert (drafts["auto"], drafts["fixed 8"], drafts["fixed 16, draft model"]) == ("small", None, "small")


@pytest.mark.parametrize("length", [0, 2, 8])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_the_replay_takes_the_steps_that_the_scheduler_takes(rate: float, length: int) -> None:
    config = SchedulerConfig(n_ctx=512, max_num_seqs=1, speculation=length, synthetic_acceptance=rate)
    scheduler = Scheduler(config, VOCABULARY)
    costs = StepCosts(LiveCosts(CURVE))
    runner = FakeRunner(512, VOCABULARY.size, costs=costs, verify=SyntheticAcceptance(rate).verify)
    params = SamplingParams(max_tokens=60, seed=3, ignore_eos=True)
    scheduler.add(Request(id="a", prompt=PromptLayout.of_text([1, 2, 3]), params=params))
    spent = 0.0
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        result = runner.execute(plan)
        scheduler.update(plan, result)
        spent += result.elapsed * 1e3 if plan.decode else 0.0
    assert replayed_ms(CURVE, rate, length, 60, 3, seed=3) == pytest.approx(spent, rel=0.002)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0], Spread(2.0, 2.0, 2.0, 1)),
        ([1.0, 3.0], Spread(2.0, 1.5, 2.5, 2)),
        ([1.0, 2, 3], Spread(2.0, 1.5, 2.5, 3)),
    ],
)
def test_quartiles_lie_within_what_was_measured(values: list[float], expected: Spread) -> None:
    assert spread(values) == expected


def test_results_are_drawn_with_a_bar_for_each_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = {"median": 1.4, "low": 1.2, "high": 1.5, "runs": 8}
    settings = {name: {"against_off": bar} for name in ("off", "auto", "fixed 2")}
    figures = {"workload": "copy", "settings": settings}
    (tmp_path / "copy-m.json").write_text(json.dumps({"figures": figures}))
    monkeypatch.setattr(plot, "RESULTS", tmp_path)
    monkeypatch.setattr(plot, "DRAWING", tmp_path / "drawing.svg")
    drawn = plot.draw_results().read_text()
    shapes = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()]
    assert shapes.count("rect") == 1 + 2 + 2, "the background, the legend, the bars"
    for word in ("copy-m", "auto", "fixed 2"):
        assert word in drawn
