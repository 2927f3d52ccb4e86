"""Memory that is full: who gives cells back, what becomes of that, and readers who are behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.running import RequestState
from forerun.core.step import RestoreSegment, StoreSegment
from forerun.testing import FAKE_SIZES, FakeDrafter, FakeRunner, FakeStore
from tests.core.harness import VOCABULARY, Harness

PLENTY = 10**9


def harness(n_ctx: int, *, drafts: bool = False, **changes: Any) -> Harness:
    usual = SchedulerConfig(
        n_ctx=n_ctx, n_seq_max=16, max_num_seqs=8, cache_ram=PLENTY, segment_sizes=FAKE_SIZES, min_prefix_tokens=4
    )
    if drafts:
        usual = replace(usual, speculation=3, draft_n_ctx=4096)
    config = replace(usual, **changes)
    drafter = FakeDrafter(config.draft_n_ctx, VOCABULARY.size, 1.0) if drafts else None
    runner = FakeRunner(n_ctx, VOCABULARY.size, drafter=drafter, store=FakeStore(config.cache_ram))
    return Harness(config, runner, lookups=[])


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY.size, count)]


def state_of(to: Harness, name: str) -> RequestState:
    return to.scheduler._requests[name]


def is_running(to: Harness, name: str) -> bool:
    return state_of(to, name).sequence is not None


def ends(to: Harness, name: str) -> bool:
    return bool(to.deltas[name]) and to.deltas[name][-1].finish_reason is not None


@pytest.mark.parametrize("drafts", [False, True])
def test_a_pool_of_one_and_a_half_serves_four_requests_of_four_fifths_and_computes_next_to_nothing_twice(
    drafts: bool,  # noqa: FBT001
) -> None:
    to, alone = harness(300, drafts=drafts), harness(300, drafts=drafts)
    for index in range(4):
        to.add(f"r{index}", tokens(index, 40), SamplingParams(max_tokens=120))
        alone.add(f"r{index}", tokens(index, 40), SamplingParams(max_tokens=120))
        alone.run()
    to.run()
    to.assert_all_right()
    assert to.scheduler.stats.preemptions > 0
    assert to.runner.rows <= 1.02 * alone.runner.rows
    if not drafts:
        assert len(to.plans) < 1.3 * len(alone.plans)
    if to.runner.drafter is not None and alone.runner.drafter is not None:
        assert to.runner.drafter.rows <= 1.1 * alone.runner.drafter.rows
    assert not to.scheduler.pool.tiers or not to.scheduler.pool.tiers._kept


def test_a_parked_request_s_kv_goes_to_host_memory_and_comes_back() -> None:
    to = harness(200)
    for name in ("first", "second"):
        to.add(name, tokens(len(name), 60), SamplingParams(max_tokens=60))
    to.run(until=lambda: to.scheduler.stats.parked == 1)
    held = state_of(to, "second").history.size - 1
    stored = [one for plan in to.plans for one in plan.operations if isinstance(one, StoreSegment)]
    assert sum(one.header.tokens for one in stored) == held
    to.run(until=lambda: is_running(to, "second"))
    restored = [one for one in to.plans[-1].operations if isinstance(one, RestoreSegment)]
    assert sum(one.stop.target - one.start.target for one in restored) == held
    to.run()
    to.assert_all_right()


def test_the_cheapest_to_bring_back_is_parked_though_another_came_later() -> None:
    to = harness(220)
    to.add("first", tokens(0, 60), SamplingParams(max_tokens=60))
    to.add("small", tokens(1, 20), SamplingParams(max_tokens=60))
    to.step()
    to.add("large", tokens(2, 90), SamplingParams(max_tokens=60))
    to.run(until=lambda: to.scheduler.stats.parked > 0)
    assert not is_running(to, "small")
    assert is_running(to, "large")
    to.run()
    to.assert_all_right()


def test_the_first_of_the_highest_priority_is_never_parked() -> None:
    to = harness(200)
    to.add("first", tokens(0, 10), SamplingParams(max_tokens=100))
    to.step()
    for index in range(3):
        to.add(f"later {index}", tokens(index + 1, 40), SamplingParams(max_tokens=100))
    while not ends(to, "first"):
        to.step()
        assert ends(to, "first") or is_running(to, "first")
    assert to.scheduler.stats.preemptions > 0
    to.run()
    to.assert_all_right()


def test_a_lower_priority_is_parked_before_a_higher_one() -> None:
    to = harness(200)
    to.add("low", tokens(0, 80), SamplingParams(max_tokens=60), priority=-1)
    to.step()
    to.add("high", tokens(1, 40), SamplingParams(max_tokens=60), priority=1)
    to.run(until=lambda: to.scheduler.stats.parked > 0)
    assert not is_running(to, "low")
    to.run()
    to.assert_all_right()


def test_what_is_held_for_a_parked_request_is_not_dropped_for_others() -> None:
    to = harness(200, cache_ram=400 * FAKE_SIZES.predict(1, 0))
    for name in ("first", "second"):
        to.add(name, tokens(len(name), 60), SamplingParams(max_tokens=60))
    to.run(until=lambda: to.scheduler.stats.parked == 1)
    tiers = to.scheduler.pool.tiers
    assert tiers is not None
    parked = state_of(to, "second").parked
    assert parked
    for _ in range(50):
        victim = tiers.host.retention.victim(0.0)
        if victim is None:
            break
        assert victim not in parked
        tiers._evict_from_host(tiers._segments[victim.key])
    to.run()
    to.assert_all_right()


def test_a_request_that_leaves_the_cache_alone_is_computed_again_after_it_was_parked() -> None:
    to = harness(200)
    for name in ("first", "second"):
        to.add(name, tokens(len(name), 60), SamplingParams(max_tokens=60), reuses_cache=False)
    to.run()
    to.assert_all_right()
    assert to.scheduler.stats.preemptions > 0
    assert not any(isinstance(one, StoreSegment) for plan in to.plans for one in plan.operations)


def test_case_b2_of_three_long_answers_in_room_for_two_only_the_one_at_its_context_s_end_is_cut_off() -> None:
    to = harness(200)
    to.add("endless", tokens(0, 50), SamplingParams(max_tokens=None, ignore_eos=True))
    for index in (1, 2):
        to.add(f"r{index}", tokens(index, 40), SamplingParams(max_tokens=60))
    to.run()
    to.assert_all_right()
    assert to.answer("endless").finish_reason is FinishReason.LENGTH
    assert len(to.tokens("endless")) == 200 + 1 - 50
    assert [len(to.tokens(f"r{index}")) for index in (1, 2)] == [60, 60]


# --- readers who are behind ----------------------------------------------------------


def test_a_paused_request_gets_nothing_and_goes_on_where_it_was() -> None:
    to = harness(400)
    for name in ("slow", "other"):
        to.add(name, tokens(len(name), 20), SamplingParams(max_tokens=30))
    to.run(until=lambda: len(to.tokens("slow")) == 5)
    to.scheduler.pause("slow")
    to.run()
    assert to.answer("other") == to.expected("other")
    assert len(to.tokens("slow")) == 5
    assert not to.scheduler.has_work
    assert to.scheduler.stats.paused == 1
    to.scheduler.resume("slow")
    to.run()
    to.assert_all_right()


def test_cells_of_a_paused_request_are_given_to_those_that_can_use_them() -> None:
    to = harness(200)
    to.add("slow", tokens(0, 100), SamplingParams(max_tokens=30))
    to.run(until=lambda: len(to.tokens("slow")) == 5)
    to.scheduler.pause("slow")
    to.add("large", tokens(1, 150), SamplingParams(max_tokens=30))
    to.run()
    assert to.answer("large") == to.expected("large")
    assert state_of(to, "slow").parked is not None
    to.scheduler.resume("slow")
    to.run()
    to.assert_all_right()
    assert to.runner.restored >= 100


def test_readers_who_are_behind_take_nobody_s_place() -> None:
    to = harness(4000, max_num_seqs=2)
    for index in range(2):
        to.add(f"slow {index}", tokens(index, 20), SamplingParams(max_tokens=30))
    to.run(until=lambda: all(map(to.tokens, to.requests)))
    for name in list(to.requests):
        to.scheduler.pause(name)
    to.add("other", tokens(5, 20), SamplingParams(max_tokens=30))
    to.run()
    assert to.answer("other") == to.expected("other")
    for name in ("slow 0", "slow 1"):
        to.scheduler.resume(name)
    to.run()
    to.assert_all_right()


def test_nobody_waits_for_a_prefix_of_a_paused_request() -> None:
    to = harness(4000, max_num_batched_tokens=16)
    shared = tokens(0, 200)
    to.add("leader", shared, SamplingParams(max_tokens=4))
    to.step()
    to.add("follower", [*shared, 1], SamplingParams(max_tokens=4))
    to.step()
    assert not is_running(to, "follower")
    to.scheduler.pause("leader")
    to.run()
    assert to.answer("follower") == to.expected("follower")
    to.scheduler.resume("leader")
    to.run()
    to.assert_all_right()


@pytest.mark.parametrize("when", ["paused", "parked"])
def test_a_paused_or_parked_request_can_be_aborted(when: str) -> None:
    to = harness(200)
    for name in ("first", "second"):
        to.add(name, tokens(len(name), 60), SamplingParams(max_tokens=60))
    if when == "parked":
        to.run(until=lambda: to.scheduler.stats.parked == 1)
    else:
        to.run(until=lambda: len(to.tokens("second")) == 3)
        to.scheduler.pause("second")
    to.abort("second")
    to.run()
    assert to.answer("first") == to.expected("first")
    stats = to.scheduler.stats
    assert (stats.running, stats.waiting, stats.parked, stats.paused) == (0, 0, 0, 0)
    assert not to.scheduler.pool.tiers or not to.scheduler.pool.tiers._kept
