"""What an engine process died of, and when the next one is started: decided by values and a clock alone."""

from __future__ import annotations

import pytest

from forerun.core.prompt import PromptLayout
from forerun.core.request import FinishReason, Request, SamplingParams
from forerun.engine.crashes import CrashRecords, content_of
from forerun.engine.process import Backoff
from forerun.engine.turns import Opened, SuspectTurns
from forerun.engine.worker import QueueSink
from forerun.testing import ManualClock


def request(name: str, tokens: list[int], **params: object) -> Request:
    return Request(
        id=name,
        prompt=PromptLayout.of_text(tokens),
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )


def opened(name: str, tokens: list[int]) -> Opened:
    return Opened(request(name, tokens), QueueSink())


def test_a_request_that_is_sent_again_is_known_whatever_its_seed_and_length() -> None:
    one = content_of(request("a", [1, 2], seed=1, max_tokens=5))
    assert content_of(request("b", [1, 2], seed=2, temperature=1.0)) == one
    assert content_of(request("b", [1, 3])) != one
    assert content_of(request("b", [1, 2], adapters="x")) != one


def test_the_second_death_is_explained_by_the_suspect_and_not_by_who_was_beside_it() -> None:
    records = CrashRecords(ManualClock())
    records.died({"killer": 0, "innocent": 7})
    assert records.is_suspect("killer")
    assert records.is_suspect("innocent")
    records.died({"killer": 0, "new": 3})
    assert records.is_refused("killer")
    assert not records.is_refused("innocent")
    assert not records.is_suspect("new")


def test_a_suspect_that_got_further_or_to_its_end_is_cleared() -> None:
    records = CrashRecords(ManualClock())
    records.died({"a": 5, "b": 0})
    assert not records.got_to("a", 5)
    assert records.is_suspect("a")
    assert records.got_to("a", 6)
    assert not records.is_suspect("a")
    records.finished("b")
    assert not records.is_suspect("b")


def test_deaths_are_forgotten_with_time_and_where_there_are_too_many() -> None:
    clock = ManualClock()
    records = CrashRecords(clock)
    records.died({"a": 0})
    records.died({"a": 0})
    assert records.is_refused("a")
    clock.advance(3601)
    assert not records.is_refused("a")
    for index in range(5000):
        records.finished(str(index - 1))
        records.died({f"{index} of many": 0})
    assert len(records) == 4096


def test_suspects_take_turns_and_others_pass() -> None:
    turns = SuspectTurns(CrashRecords(ManualClock()))
    first, second = opened("first", [1]), opened("second", [2])
    assert turns.may_start(first)
    assert turns.may_start(second)
    turns.died([first, second])
    again, other, new = opened("again", [1]), opened("other", [2]), opened("new", [3])
    assert turns.may_start(again)
    assert not turns.may_start(other)
    assert turns.may_start(new)
    assert turns.next() is None
    again.tokens = 1
    turns.got_on(again, None)
    assert turns.next() is other
    assert turns.may_start(other)
    turns.got_on(other, FinishReason.STOP)
    assert turns.may_start(opened("once more", [2]))


def test_a_turn_ends_with_an_abort_which_clears_nobody() -> None:
    turns = SuspectTurns(CrashRecords(ManualClock()))
    turns.died([opened("first", [1])])
    again, held = opened("again", [1]), opened("held", [1])
    assert turns.may_start(again)
    assert not turns.may_start(held)
    turns.got_on(again, FinishReason.ABORT)
    assert turns.next() is held
    assert turns.may_start(held)
    turns.died([held])
    assert turns.refusal(request("b", [1])) is not None
    assert turns.refusal(request("b", [2])) is None


def test_a_held_request_can_be_given_up() -> None:
    turns = SuspectTurns(CrashRecords(ManualClock()))
    turns.died([opened("first", [1])])
    assert turns.may_start(opened("again", [1]))
    held = opened("held", [1])
    assert not turns.may_start(held)
    assert turns.give_up("unknown") is None
    assert turns.give_up("held") is held
    assert turns.take_held() == []


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 0.2), (2, 0.4), (5, 3.2), (9, 30.0), (10_000, 30.0)])
def test_a_process_that_keeps_dying_is_started_ever_later(attempt: int, seconds: float) -> None:
    assert Backoff().delay(attempt) == pytest.approx(seconds)


def test_a_minute_of_health_starts_the_delays_over() -> None:
    backoff = Backoff()
    assert backoff.attempt(6, ready_for=59.0) == 7
    assert backoff.attempt(6, ready_for=60.0) == 1
