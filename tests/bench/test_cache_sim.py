"""Traces replayed on the catalog of stored segments."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from forerun.bench.cache_sim import EVERYTHING, Hits, ideal_lengths, simulate
from forerun.bench.trace import Trace, TraceRequest
from forerun.core.prompt import Tokens, as_tokens
from forerun.core.recompute import RecomputeCost
from forerun.core.value import POLICIES

COST = RecomputeCost()


def conversations(count: int, turns: int, seed: int, *, system: int = 200) -> list[TraceRequest]:
    """Round after round, all with the same system prompt."""
    dice = np.random.default_rng(seed)
    held = {name: dice.integers(0, 500, 1)[:0] for name in map(str, range(count))}
    shared = dice.integers(0, 500, system)
    requests: list[TraceRequest] = []
    for turn in range(turns):
        for name, before in held.items():
            new = dice.integers(0, 500, int(dice.integers(50, 900)))
            prompt = np.concatenate([before if turn else shared, new])
            answer = dice.integers(0, 500, 100)
            requests.append(TraceRequest(len(requests) * 5.0, name, as_tokens(prompt), as_tokens(answer)))
            held[name] = np.concatenate([prompt, answer])
    return requests


def one_offs(count: int, seed: int, until: float) -> list[TraceRequest]:
    """Prompts that nobody asks for again."""
    dice = np.random.default_rng(seed)
    times = np.sort(dice.uniform(0, until, count)).tolist()
    return [TraceRequest(at, f"one-off {at}", _tokens(dice, 800), _tokens(dice, 50)) for at in times]


def _tokens(dice: np.random.Generator, count: int) -> Tokens:
    return as_tokens(dice.integers(500, 1000, count))


def test_the_ideal_is_what_any_earlier_request_held_but_for_the_token_that_must_be_evaluated() -> None:
    rows = [([1, 2, 3], [4]), ([1, 2, 3, 4, 5], []), ([1, 2, 3, 4], []), ([2, 3], []), ([1, 2, 9], [])]
    requests = [TraceRequest(at, "", as_tokens(p), as_tokens(a)) for at, (p, a) in enumerate(rows)]
    assert ideal_lengths(requests) == [0, 4, 3, 0, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_that_holds_everything_hits_all_that_can_be_hit(policy: str) -> None:
    trace = Trace(tuple(conversations(6, 5, seed=1)))
    outcome = simulate(trace, policy, EVERYTHING, COST)
    assert list(outcome.lengths) == ideal_lengths(trace.requests)
    assert outcome.evicted == 0
    again = simulate(trace, policy, outcome.most_used, COST)
    assert again.hits == outcome.hits


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_is_kept_to_the_byte_and_less_of_it_hits_no_more_than_the_ideal(policy: str) -> None:
    trace = Trace(tuple(conversations(6, 5, seed=2)), bytes_per_token=7)
    everything = simulate(trace, policy, EVERYTHING, COST).most_used
    ideal = ideal_lengths(trace.requests)
    for share in (0.1, 0.3, 0.6):
        outcome = simulate(trace, policy, int(share * everything), COST)
        assert outcome.most_used <= share * everything
        assert all(ours <= most for ours, most in zip(outcome.lengths, ideal, strict=True))
        assert outcome.evicted > 0


def test_prompts_that_nobody_repeats_wash_conversations_out_of_lru_and_fifo_but_not_by_value() -> None:
    talk = conversations(4, 30, seed=3)
    requests = sorted([*talk, *one_offs(1200, 4, talk[-1].at)], key=lambda request: request.at)
    trace = Trace(tuple(requests))
    budget = int(1.1 * simulate(Trace(tuple(talk)), "lru", EVERYTHING, COST).most_used)
    ideal = sum(ideal_lengths(requests))
    lost = {policy: ideal - simulate(trace, policy, budget, COST).hits.tokens for policy in POLICIES}
    assert lost["value"] < 0.5 * lost["lru"]
    assert lost["value"] < 0.5 * lost["fifo"]


def test_who_repeats_a_conversation_finds_the_rest_of_it_by_value() -> None:
    """Four conversations end; the first one is repeated turn by turn while others need room."""
    talk = conversations(5, 4, seed=5, system=0)
    first = [request for request in talk if request.conversation == "0"]
    start = talk[-1].at + 300.0
    others = [
        TraceRequest(start + 15 * n, "x", _tokens(np.random.default_rng(n), 700), as_tokens([])) for n in range(8)
    ]
    repeated = [
        TraceRequest(start + 10 + 30 * n, "again", request.prompt, request.answer) for n, request in enumerate(first)
    ]
    requests = sorted([*talk, *others, *repeated], key=lambda request: request.at)
    budget = simulate(Trace(tuple(talk)), "lru", EVERYTHING, COST).most_used
    by_policy = {policy: simulate(Trace(tuple(requests)), policy, budget, COST).hits.tokens for policy in POLICIES}
    assert by_policy["value"] > by_policy["lru"]


def test_seconds_saved_are_the_prefill_of_what_was_hit() -> None:
    cost = RecomputeCost(ms_per_token=2.0, ms_per_token_kilocell=1.0)
    hits = Hits.of([1000, 0, 500], cost)
    assert hits.tokens == 1500
    assert hits.saved_seconds == pytest.approx((2500 + 1125) / 1000)


def test_requests_of_a_conversation_are_in_order_in_the_made_up_trace() -> None:
    requests = conversations(3, 3, seed=0)
    for name in "012":
        own = [request for request in requests if request.conversation == name]
        for before, after in pairwise(own):
            assert np.array_equal(after.prompt[: before.content.size], before.content)
