"""`forerun chat` with piped input on the fake model."""

from __future__ import annotations

import re

import pytest

from forerun.engine.parts import EngineParts
from forerun.testing import FakeRunner
from tests.cli.conftest import FakeBuild, Forerun
from tests.engine.support import BreakingRunner, fake_parts

TEN = ("--max-tokens", "10", "--ignore-eos")


def test_each_line_is_a_message_and_each_answer_a_line(forerun: Forerun) -> None:
    result = forerun("chat", "fake", *TEN, stdin="ab\n\nb\n")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    assert len(result.stderr.splitlines()) == 2


def test_the_second_turn_finds_the_whole_first_turn_cached(forerun: Forerun) -> None:
    no_halves_of_characters = ("--logit-bias", "3=-100", "--logit-bias", "4=-100")
    result = forerun("chat", "fake", *TEN, *no_halves_of_characters, stdin="abab\nb\n")
    cached = [int(number) for number in re.findall(r"\((\d+) cached\)", result.stderr)]
    assert cached == [0, 5 + 10 - 1]  # the last token of an answer is never put into memory


def test_quit_ends_the_conversation(forerun: Forerun) -> None:
    assert len(forerun("chat", "fake", *TEN, stdin="ab\n/quit\nb\n").stdout.splitlines()) == 1


def test_a_message_that_cannot_be_answered_is_reported_and_forgotten(forerun: Forerun) -> None:
    long = "ab" * 200
    with_it = forerun("chat", "fake", *TEN, stdin=f"ab\n{long}\nb\n")
    without = forerun("chat", "fake", *TEN, stdin="ab\nb\n")
    assert with_it.exit_code == 0
    assert "forerun: prompt: has" in with_it.stderr
    assert [line for line in with_it.stdout.splitlines() if line] == without.stdout.splitlines()


def test_a_dying_engine_ends_the_session(forerun: Forerun, fake_build: FakeBuild) -> None:
    fake_build.runner = BreakingRunner(256, breaks_at=3)
    result = forerun("chat", "fake", *TEN, stdin="ab\nb\n")
    assert result.exit_code == 2
    assert "the engine thread died" in result.stderr


def test_ctrl_c_ends_the_answer_but_not_the_session(forerun: Forerun, fake_build: FakeBuild) -> None:
    fake_build.runner = FakeRunner(256)
    interrupts = iter([True, False])

    def interrupt_once(text: str) -> None:
        if text and next(interrupts, False):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forerun.cli.terminal.Terminal.write", staticmethod(interrupt_once))
        result = forerun("chat", "fake", *TEN, stdin="ab\nb\n")
    assert result.exit_code == 0
    assert len(re.findall(r"\(\d+ cached\)", result.stderr)) == 1


def test_a_model_without_template_is_refused(forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_template(config: object, progress: object = None) -> EngineParts:
        del config, progress
        parts = fake_parts()
        return EngineParts(
            scheduler=parts.scheduler, runner=parts.runner, vocabulary=parts.vocabulary, n_ctx=256, model_name="base"
        )

    monkeypatch.setattr("forerun.cli.terminal.build", without_template)
    result = forerun("chat", "fake", stdin="ab\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "base has no chat template" in result.stderr
    assert forerun("run", "fake", "ab", *TEN).exit_code == 0
    assert "no chat template" in forerun("run", "fake", "ab", "--system", "b").stderr
