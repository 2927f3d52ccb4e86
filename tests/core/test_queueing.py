"""Who of the waiting starts next: priorities, deadlines, warm prompts, small ones past large ones, all in bounds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from forerun.core.config import SchedulerConfig
from forerun.core.queueing import MOST_OVERTAKEN, WaitingLine
from forerun.core.request import SamplingParams
from forerun.core.running import RequestState
from tests.core.harness import Harness


class StartedHarness(Harness):
    """Knows in which order requests started: all at once in one step count as they came."""

    @property
    def started(self) -> list[str]:
        found = [(state.admitted_at, state.number, name) for name, state in self.states.items()]
        return [name for at, _, name in sorted(one for one in found if one[0] is not None)]

    @property
    def states(self) -> dict[str, RequestState]:
        known: dict[str, RequestState] = self.__dict__.setdefault("_states", {})
        return known

    def add(self, name: str, tokens: Any, params: SamplingParams | None = None, **options: Any) -> None:
        super().add(name, tokens, params, **options)
        self.states[name] = self.scheduler._requests[name]

    def until_all_started(self) -> list[str]:
        """In order. A step starts one at a time where max_num_seqs is 1."""
        for _ in range(5000):
            if len(self.started) == len(self.requests) or not self.scheduler.has_work:
                break
            self.step()
        return self.started


def one_at_a_time(**limits: int) -> StartedHarness:
    """Somebody runs, and all others wait."""
    run = StartedHarness(SchedulerConfig(**{"n_ctx": 512, "max_num_seqs": 1, **limits}))  # type: ignore[arg-type]
    run.add("first", [1, 2, 3], SamplingParams(max_tokens=2))
    run.step()
    return run


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 20, length)]


ONE = SamplingParams(max_tokens=1)


# --- deadlines ----------------------------------------------------------


def test_among_equals_the_earliest_deadline_is_first_and_then_who_came_first() -> None:
    run = one_at_a_time()
    for name, deadline in [("a", None), ("late", 500.0), ("soon", 50.0), ("b", None), ("between", 400.0)]:
        run.add(name, [1, 2], ONE, deadline=deadline, arrival=5.0)
    run.add("above", [1, 2], ONE, priority=1, arrival=5.0)
    assert run.until_all_started() == ["first", "above", "soon", "between", "late", "a", "b"]


def test_a_deadline_that_has_passed_counts_no_more() -> None:
    """Who cannot be in time any more makes nobody else late."""
    run = one_at_a_time()
    run.add("plain", [1, 2], ONE, arrival=0.0)
    run.add("missed", [1, 2], ONE, deadline=2.0, arrival=0.0)
    run.add("possible", [1, 2], ONE, deadline=500.0, arrival=0.0)
    run.step()
    run.step()
    assert run.until_all_started() == ["first", "possible", "plain", "missed"]


# --- warm first ----------------------------------------------------------


def test_what_is_in_memory_goes_first_among_equals() -> None:
    run = one_at_a_time()
    warm = prompt(200, 1)
    run.add("earlier", warm, ONE)
    run.run(until=lambda: bool(run.deltas["earlier"]))
    run.add("busy", [1, 2], SamplingParams(max_tokens=6))
    run.step()
    run.add("cold", prompt(200, 2), ONE)
    run.add("above", prompt(200, 3), ONE, priority=1)
    run.add("warm", [*warm, 5], ONE)
    assert run.until_all_started()[-3:] == ["above", "warm", "cold"]
    assert run.usage("warm").cached_tokens >= 199


def test_a_cold_prompt_is_overtaken_by_warm_ones_a_bounded_number_of_times() -> None:
    run = one_at_a_time(n_ctx=2048)
    warm = prompt(200, 1)
    run.add("earlier", warm, ONE)
    run.run()
    run.add("busy", [1, 2], SamplingParams(max_tokens=6))
    run.step()
    run.add("cold", prompt(200, 2), ONE)
    for index in range(3 * MOST_OVERTAKEN):
        run.add(f"warm {index}", [*warm, index % 20], ONE)
    order = run.until_all_started()
    before = order.index("cold") - order.index("busy") - 1
    assert before == MOST_OVERTAKEN
    run.run()
    run.assert_all_right()


# --- what does not fit ----------------------------------------------------------


def full_memory(n_ctx: int = 400, **limits: int) -> StartedHarness:
    """One long answer takes most of the memory."""
    config = SchedulerConfig(**{"n_ctx": n_ctx, "max_num_seqs": 4, **limits})  # type: ignore[arg-type]
    run = StartedHarness(config)
    run.add("long", prompt(200), SamplingParams(max_tokens=100))
    run.step()
    assert run.started == ["long"]
    return run


def test_what_does_not_fit_does_not_stop_smaller_ones() -> None:
    run = full_memory()
    run.add("large", prompt(300, 1), ONE)
    run.add("small", prompt(10, 2), ONE)
    run.add("too", prompt(12, 3), ONE)
    run.run(until=lambda: bool(run.tokens("small") and run.tokens("too")))
    assert not run.tokens("large")
    assert "large" not in run.started
    run.run()
    run.assert_all_right()


def test_what_does_not_fit_starts_within_a_bounded_number_of_others() -> None:
    """Small requests keep coming, which alone would keep the memory too full for ever."""
    run = full_memory(max_num_seqs=2)
    run.add("large", prompt(390, 1), ONE)
    count = 0
    while not run.tokens("large"):
        run.add(f"small {count}", prompt(10, count), SamplingParams(max_tokens=8))
        count += 1
        run.step()
        assert count < 400, "it never started"
    passed = [name for name in run.started[: run.started.index("large")] if name.startswith("small")]
    assert len(passed) <= MOST_OVERTAKEN
    run.run()
    run.assert_all_right()


def test_a_large_one_of_low_priority_starts_although_small_ones_of_a_higher_keep_coming() -> None:
    run = full_memory(max_num_seqs=2)
    run.add("large", prompt(390, 1), ONE, priority=-5, arrival=0.0)
    count = 0
    while not run.tokens("large"):
        run.add(f"small {count}", prompt(10, count), SamplingParams(max_tokens=8), arrival=float(count))
        count += 1
        run.step()
        assert count < 1500, "it never started"
    run.run()
    run.assert_all_right()


# --- aging ----------------------------------------------------------


def test_priorities_age_so_that_nobody_starves_and_urgent_ones_lose_a_bounded_share() -> None:
    run = one_at_a_time()
    for index in range(4):
        run.add(f"low {index}", [1, 2], ONE, priority=-10, arrival=0.0)
    for index in range(400):
        run.add(f"high {index}", [3, index % 20], ONE, priority=10, arrival=0.0)
    order = run.until_all_started()
    at = [order.index(f"low {index}") for index in range(4)]
    assert at[0] < 70, "it has aged after a minute, a step a second"
    assert at == sorted(at)
    assert [late - early for early, late in itertools.pairwise(at)] == [4, 4, 4]
    assert not any(name.startswith("low") for name in order[:50])


def test_a_request_with_a_deadline_does_not_starve_those_without() -> None:
    run = one_at_a_time()
    run.add("plain", [1, 2], ONE, arrival=0.0)
    for index in range(60):
        run.add(f"due {index}", [3, index % 20], ONE, deadline=1000.0 + index, arrival=0.0)
    order = run.until_all_started()
    assert order.index("plain") < 20


# --- making way ----------------------------------------------------------


def test_who_is_less_urgent_gives_its_place_up_to_who_is_more_and_goes_on_later() -> None:
    run = StartedHarness(SchedulerConfig(n_ctx=512, max_num_seqs=2))
    for name in ("low", "lower"):
        run.add(name, prompt(20, len(name)), SamplingParams(max_tokens=60), priority=-len(name))
    run.step()
    run.add("urgent", prompt(20, 9))
    run.step()
    assert run.tokens("urgent")
    assert "lower" in {state.request.id for state in run.scheduler._admission}
    run.run()
    run.assert_all_right()
    assert run.usage("lower").cached_tokens == 0, "what it computed itself is not counted as found"


def test_nobody_gives_way_for_ever() -> None:
    run = StartedHarness(SchedulerConfig(n_ctx=512, max_num_seqs=1))
    run.add("low", prompt(20, 1), SamplingParams(max_tokens=30), priority=-1)
    run.step()
    count = 0
    while not (run.deltas["low"] and run.deltas["low"][-1].finish_reason):
        run.add(f"urgent {count}", [1, count % 20], SamplingParams(max_tokens=3), arrival=float(len(run.plans)))
        count += 1
        run.step()
        assert count < 200
    assert run.states["low"].gave_way == 2
    run.run()
    run.assert_all_right()


def test_equals_give_way_to_nobody() -> None:
    run = one_at_a_time()
    run.add("deadline", [1, 2], ONE, deadline=2.0)
    assert run.states["first"].gave_way == 0
    run.step()
    assert run.started == ["first"]


# --- the line itself ----------------------------------------------------------


def test_who_ran_before_comes_before_others_of_its_priority() -> None:
    run = one_at_a_time()
    for name, deadline in [("new", None), ("ran", None), ("due", 900.0)]:
        run.add(name, [1, 2], deadline=deadline)
    new, ran, due = (run.states[name] for name in ("new", "ran", "due"))
    ran.admitted_at = 1.0
    line = WaitingLine()
    for state in (new, due, ran):
        line.add(state)
    assert list(line) == [ran, due, new]
    assert repr(line) == "WaitingLine(3 requests)"
    line.remove(due)
    assert list(line) == [ran, new]


def test_case_b1_the_queue_lets_nobody_wait_for_a_prompt_that_is_read_in_pieces() -> None:
    """A 20-token prompt that comes a little after a long one has its first token before it."""
    run = StartedHarness(SchedulerConfig(n_ctx=8192, max_num_seqs=3, max_num_batched_tokens=64))
    run.add("stream", [1, 2, 3], SamplingParams(max_tokens=500))
    run.step()
    run.add("long", prompt(4000, 1), ONE)
    run.step()
    run.add("short", prompt(20, 2), ONE)
    run.run(until=lambda: bool(run.tokens("short")))
    assert not run.tokens("long")
