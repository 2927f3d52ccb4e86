"""The fake engine that servers are tested with."""

from __future__ import annotations

from forerun import Engine, SamplingParams
from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptLayout
from forerun.core.request import Request
from forerun.core.scheduler import Scheduler
from forerun.testing import ManualClock
from forerun.testing.served import IM_END, IM_START, ByteVocabulary, PacedRunner, served_parts

TEXT = "Grüße, 世界 🙂\n"


def test_any_text_is_tokens_and_comes_back() -> None:
    vocabulary = ByteVocabulary()
    tokens = vocabulary.tokenize(TEXT, add_special=True, parse_special=True)
    assert b"".join(map(vocabulary.piece, tokens)).decode() == TEXT


def test_control_tokens_are_read_only_where_they_are_asked_for() -> None:
    vocabulary = ByteVocabulary()
    text = "<|im_start|>user<|im_end|>"
    assert vocabulary.tokenize(text, add_special=True, parse_special=True).tolist() == [IM_START, *b"user", IM_END]
    assert bytes(vocabulary.tokenize(text, add_special=True, parse_special=False).tolist()).decode() == text


def test_the_same_conversation_gets_the_same_printable_answer() -> None:
    with Engine(served_parts()) as engine:
        answers = {next(engine.chat([{"role": "user", "content": TEXT}])).text for _ in range(2)}
    (answer,) = answers
    assert set(answer) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_steps_end_when_they_are_due_late_ones_are_made_up_for_and_pauses_are_not() -> None:
    clock = ManualClock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        clock.advance(seconds)

    runner = PacedRunner(256, 0.02, clock=clock, sleep=sleep)
    scheduler = Scheduler(SchedulerConfig(n_ctx=256), ByteVocabulary())
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    scheduler.add(Request(id="a", prompt=PromptLayout.of_text([1]), params=params))
    for pause, work in [(9.0, 0.005), (0.0, 0.03), (0.0, 0.005), (9.0, 0.0), (0.0, 0.0)]:
        clock.advance(pause)
        plan = scheduler.schedule(clock())
        runner.faults = lambda _, work=work: clock.advance(work)
        scheduler.update(plan, runner.execute(plan))
    assert slept == [0.015, 0.0, 0.005, 0.02, 0.02]
