"""Workload files: what is read, and how what is wrong is called."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from forerun.core.costs import CostCurve
from forerun.errors import InvalidConfigError
from forerun.simulation.amounts import Between, Fixed, LongTailed
from forerun.simulation.machine import costs_as_json, read_costs
from forerun.simulation.workload import read_workload

TEXT = """
[simulation]
seconds = 60
warmup_seconds = 5
seed = 3

[machine]
kv_bytes_per_token = 100
[machine.target]
rows = [1, 8]
ms = [10, 20.5]

[engine]
n_ctx = 1000
max_num_seqs = 2

[[users]]
name = "talkers"
count = 10
every_seconds = 30
turns = [1, 3]
think_seconds = 5
message_tokens = { median = 80, p95 = 400 }
answer_tokens = 120

[[users]]
name = "askers"
count = 4
priority = 2
arrivals = "open"
every_seconds = 10
message_tokens = 10
answer_tokens = [50, 70]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "workload.toml"
    path.write_text(text)
    return path


def test_a_workload_is_read_with_amounts_as_numbers_ranges_and_long_tails(tmp_path: Path) -> None:
    load = read_workload(written(tmp_path, TEXT))
    assert (load.seconds, load.warmup, load.seed, load.users) == (60, 5, 3, 14)
    talkers, askers = load.groups
    assert (talkers.message_tokens, talkers.turns) == (LongTailed(80, 400), Between(1, 3))
    assert (talkers.answer_tokens, askers.answer_tokens) == (Fixed(120), Between(50, 70))
    assert load.machine.target == CostCurve((1, 8), (10.0, 20.5))
    assert (load.config.n_ctx, load.config.max_num_seqs) == (1000, 2)
    assert talkers.offered == pytest.approx(10 / (30 + 5) * 2 * 120)
    assert askers.offered == pytest.approx(4 / 10 * 60)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("count = 10", "count = 0", "users[0].count: input should be greater than or equal to 1, got 0"),
        ("count = 4", 'count = "4"', "users[1].count: input should be a valid integer, got 4"),
        ("count = 4", "count = 4\npace = 3", "users[1].pace: extra inputs are not permitted"),
        (
            "answer_tokens = 120",
            "answer_tokens = 0",
            "users[0].answer_tokens: must lie between 1 and 1.67772e+07, got 0",
        ),
        ("turns = [1, 3]", "turns = [3, 1]", "users[0].turns: a range ascends, got 3 and 1"),
        ("turns = [1, 3]", "turns = [1, 2, 3]", "users[0].turns: a range has two ends, got 3"),
        ("think_seconds = 5", "think_seconds = nan", "users[0].think_seconds: must lie between 0 and 1e+07, got nan"),
        (
            "every_seconds = 30",
            "every_seconds = nan",
            "users[0].every_seconds: input should be a finite number, got nan",
        ),
        ("median = 80", "mean = 80", "users[0].message_tokens: has the fields median and p95, got mean, p95"),
        (
            "median = 80",
            "median = 800",
            "users[0].message_tokens: median must lie above 0 and below p95, got 800 and 400",
        ),
        ('arrivals = "open"', 'arrivals = "odd"', "users[1].arrivals: input should be 'closed' or 'open', got odd"),
        ('name = "askers"', 'name = "talkers"', "users[1].name: is taken by another group already: 'talkers'"),
        ("seconds = 60", "seconds = 5", "simulation.warmup_seconds: must be less than simulation.seconds = 5, got 5"),
        ("n_ctx = 1000", "", "engine.n_ctx: is missing"),
        ("n_ctx = 1000", "n_ctx = 1000.5", "engine.n_ctx: must be a whole number, got 1000.5"),
        ("max_num_seqs = 2", "max_seqs = 2", "engine.max_seqs: is not known; there are "),
        ("max_num_seqs = 2", "max_num_seqs = 0", "engine: max_num_seqs must be at least 1, got 0"),
        ("max_num_seqs = 2", "reuse_prefixes = 1", "engine.reuse_prefixes: must be true or false, got 1"),
        ("max_num_seqs = 2", 'retention = "mru"', "engine: no policy 'mru'"),
        ("max_num_seqs = 2", "speculation = 4", "engine.synthetic_acceptance: is missing"),
        ("ms = [10, 20.5]", "ms = [10]", "machine.target: a curve has a cost for each row count"),
        ("ms = [10, 20.5]", "ms = [10, inf]", "machine.target.ms[1]: input should be a finite number, got inf"),
        (
            "kv_bytes_per_token = 100",
            'costs = "c.json"',
            "machine.costs: names a file, but machine.target is there too",
        ),
        ("[machine]", "[machine", "is no TOML"),
        ("[simulation]", "[simulations]", "simulation: field required"),
    ],
)
def test_what_is_wrong_is_called_by_its_name_in_the_file(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(InvalidConfigError) as caught:
        read_workload(written(tmp_path, TEXT.replace(old, new, 1)))
    assert words in str(caught.value)


def test_costs_come_from_a_file_beside_the_workload_or_one_that_stands_in_for_it(tmp_path: Path) -> None:
    mine, other = (CostCurve((1, 4), (ms, 2 * ms), (0.1, 0.2), cells=64) for ms in (5.0, 7.0))
    for name, curves in (("mine", [("m", mine)]), ("other", [("m", other), ("d", mine)])):
        (tmp_path / f"{name}.json").write_text(json.dumps(costs_as_json(curves)))
    begin, end = TEXT.index("[machine.target]"), TEXT.index("[engine]")
    text = TEXT[:begin] + 'costs = "mine.json"\n' + TEXT[end:]
    load = read_workload(written(tmp_path, text))
    assert (load.machine.target, load.machine.draft) == (mine, None)
    load = read_workload(written(tmp_path, text), tmp_path / "other.json")
    assert (load.machine.target, load.machine.draft) == (other, mine)
    (tmp_path / "mine.json").unlink()
    with pytest.raises(InvalidConfigError, match=r"mine\.json: cannot be read: No such file"):
        read_workload(written(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("hello", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "input should be a valid dictionary"),
        ('{"format": "forerun-costs-2", "curves": [{"model": "m", "rows": [1], "ms": [1]}]}', "not 'forerun-costs-1'"),
        ('{"format": "forerun-costs-1", "curves": []}', "curves: list should have at least 1 item"),
        ('{"format": "forerun-costs-1", "curves": [{"model": "m", "rows": [1], "ms": [NaN]}]}', "finite number"),
        ('{"format": "forerun-costs-1", "curves": [{"model": "m", "rows": [2], "ms": [1]}]}', "from 1 on"),
    ],
)
def test_a_file_without_costs_is_refused_by_its_name(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(InvalidConfigError, match=r"costs\.json") as caught:
        read_costs(path)
    assert words in str(caught.value)


def test_a_workload_that_is_too_long_or_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w"
    for content, words in ((b"#" * (2**20 + 1), "longer than 1048576 bytes"), (b"\xff", "no text in UTF-8")):
        path.write_bytes(content)
        with pytest.raises(InvalidConfigError, match=words):
            read_workload(path)


def test_amounts_are_drawn_around_their_means_and_long_tails_are_bounded() -> None:
    dice = Random(1)
    for amount in (Fixed(7), Between(2, 10), LongTailed(100, 400)):
        drawn = sorted(amount.draw(dice) for _ in range(20_000))
        assert sum(drawn) / len(drawn) == pytest.approx(amount.mean, rel=0.03)
    assert drawn[10_000] == pytest.approx(100, rel=0.05)
    assert drawn[19_000] == pytest.approx(400, rel=0.05)
    assert drawn[-1] <= 1600
