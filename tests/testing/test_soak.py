"""Soaks of the fake model: short ones here, as long as wanted with `python -m forerun.testing.soak`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.core.memory import MemoryKind
from forerun.core.step import StepPlan, StepResult
from forerun.testing import SeededFaults
from forerun.testing.soak import Soak, SoakError, Subject, fake_subject
from forerun.testing.soak.__main__ import main

KINDS = {"dense": MemoryKind(), "window": MemoryKind(window=12), "state": MemoryKind(has_state=True)}
OFTEN = 0.03
"""Of the steps are struck: three times as many as `python -m forerun.testing.soak` does."""


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_but_culprits_is_lost_whatever_fails(kind: str) -> None:
    summary = Soak(fake_subject(1, OFTEN, KINDS[kind]), seed=1).run(lambda steps: steps < 300)
    assert summary.lost == ()
    assert sum(summary.faults.values()) > 0
    assert summary.finished["length"] > 0


def test_a_soak_is_told_again_by_its_seed() -> None:
    first, second = (Soak(fake_subject(7, OFTEN), seed=7).run(lambda steps: steps < 60) for _ in range(2))
    assert first == second


class _Meddling:
    """A runner that does as another does, and meddles with what it did."""

    def __init__(self, subject: Subject) -> None:
        self.runner = subject.runner

    def execute(self, plan: StepPlan) -> StepResult:
        return self.runner.execute(plan)

    def close(self) -> None:
        self.runner.close()


class _WrongTokens(_Meddling):
    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        wrong = {
            key: replace(one, tokens=(*one.tokens[:-1], 1 - one.tokens[-1] % 2))
            for key, one in result.sequences.items()
        }
        return replace(result, sequences=wrong)


class _LostRows(_Meddling):
    def execute(self, plan: StepPlan) -> StepResult:
        return super().execute(replace(plan, prefill=tuple(rows for rows in plan.prefill if rows.sampling is not None)))


@pytest.mark.parametrize(("meddling", "message"), [(_WrongTokens, "alone it gets"), (_LostRows, "bookkeeping says")])
def test_a_soak_sees_what_must_never_be(meddling: type[_Meddling], message: str) -> None:
    subject = fake_subject(1, 0.0)
    with pytest.raises(SoakError, match=message):
        Soak(replace(subject, runner=meddling(subject)), seed=1).run(lambda steps: steps < 300)


def test_a_soak_says_who_was_lost_without_being_a_culprit() -> None:
    subject = fake_subject(1, 0.1)
    unaware = replace(subject, faults=SeededFaults(0, 0.0))  # that one knows of no culprits
    summary = Soak(unaware, seed=1).run(lambda steps: steps < 300)
    assert summary.lost
    assert not summary.is_good
    assert summary.lost[0] in "\n".join(summary.lines())


def test_the_program_prints_a_summary_and_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "figures.json"
    assert main(["--minutes", "0.005", "--seed", "3", "--kind", "window", "--output", str(output)]) == 0
    assert "lost without being one: none" in capsys.readouterr().out
    assert json.loads(output.read_text())["seed"] == 3
