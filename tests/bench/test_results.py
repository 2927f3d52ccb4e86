"""Results in files, and ratios that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.bench.measuring import Work
from forerun.bench.ratios import Ratio
from forerun.bench.results import Comparison, Round, SystemResult, WorkloadResult, read_results, write_results
from forerun.errors import BenchmarkError


def result(mine: Work, theirs: Work, *, feeds_back: bool = False, primary: str = "ttft_ms") -> WorkloadResult:
    rounds = tuple(
        {"a": Round({primary: 10.0 + number}, mine), "b": Round({primary: 20.0 + 2 * number}, theirs)}
        for number in range(4)
    )
    return WorkloadResult("single", {"prompt": 8}, "About.", primary, feeds_back=feeds_back, rounds=rounds)


def test_the_same_work_gives_a_ratio() -> None:
    found = result(Work(100, 8), Work(100, 8)).ratio("a", "b")
    assert isinstance(found, Ratio)
    assert found.median == 2.0


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (Work(101, 8), "prompts were not the same: 100 and 101"),
        (Work(100, 7), "answers were not the same: 8 and 7"),
        (Work(None, 8), "does not say"),
    ],
)
def test_other_work_gives_none_and_says_why(theirs: Work, words: str) -> None:
    found = result(Work(100, 8), theirs).ratio("a", "b")
    assert isinstance(found, str)
    assert words in found


def test_answers_that_are_fed_back_may_be_read_a_little_longer() -> None:
    assert isinstance(result(Work(1000, 8), Work(1009, 8), feeds_back=True).ratio("a", "b"), Ratio)
    assert isinstance(result(Work(1000, 8), Work(1011, 8), feeds_back=True).ratio("a", "b"), str)


def test_who_did_not_answer_has_no_ratio() -> None:
    failed = WorkloadResult("single", {}, "About.", "ttft_ms", errors={"b": "refused"})
    assert failed.ratio("a", "b") == "b did not answer"


def test_the_figure_says_which_way_is_better() -> None:
    rates = result(Work(1, 1), Work(1, 1), primary="newcomer decode_per_s").ratio("a", "b")
    assert isinstance(rates, Ratio)
    assert rates.median == 0.5


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = Comparison(
        {"cpu": "x"}, {"rounds": 4}, (SystemResult("a"), SystemResult("b")), (result(Work(1, 1), Work(1, 1)),)
    )
    write_results(tmp_path / "new", found)
    assert read_results(tmp_path / "new") == found


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), ("{", "holds no results"), ('{"machine": {}, "settings": {}, "format": "x"}', "'x'")],
)
def test_a_folder_without_results_is_told(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(BenchmarkError, match=words):
        read_results(tmp_path)
