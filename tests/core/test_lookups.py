"""Drafters that look continuations up, together: past outputs, forced tokens, plug-ins; and tenants kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.drafting import NgramDrafter
from forerun.core.lookups import own_lookups
from forerun.core.prompt import Tokens
from forerun.core.request import ForcedTokens, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import Drafter, DraftRequest, Proposal
from forerun.core.suffix import SuffixIndex
from forerun.testing import FakeRunner
from tests.core.harness import VOCABULARY, Harness

CONFIG = SchedulerConfig(n_ctx=2048, max_num_seqs=8, speculation=8, reuse_prefixes=False)
PARAMS = SamplingParams(max_tokens=60)
PROMPT = [1, 2, 3, 4, 5]


def add(
    harness: Harness, name: str, tokens: list[int], *, tenant: str = "", forced: ForcedTokens | None = None
) -> None:
    harness.add(name, tokens, PARAMS, tenant=tenant, forced=forced)


def drafted(harness: Harness, start: int = 0) -> list[tuple[tuple[int, ...], ...]]:
    """What was drafted in each step."""
    return [tuple(row.drafts for row in plan.decode) for plan in harness.plans[start:]]


def test_a_request_answered_before_is_drafted_from_its_earlier_answer() -> None:
    harness = Harness(CONFIG)
    add(harness, "first", PROMPT)
    harness.run()
    steps = len(harness.plans)
    add(harness, "again", PROMPT)
    harness.run()
    harness.assert_all_right()
    assert len(harness.plans) - steps <= steps / 5
    assert harness.usage("again").drafters["suffix"][1] >= 50
    assert ("suffix", 8) in harness.deltas["again"][1].origins


def test_a_request_follows_one_that_is_still_running() -> None:
    harness = Harness(CONFIG)
    add(harness, "ahead", PROMPT)
    harness.run(until=lambda: len(harness.tokens("ahead")) > 30)
    add(harness, "behind", PROMPT)
    harness.run(until=lambda: len(harness.tokens("behind")) > 15)
    assert harness.deltas["ahead"][-1].finish_reason is None
    harness.run()
    harness.assert_all_right()
    assert harness.usage("behind").drafters["suffix"][1] > 10


@pytest.mark.parametrize("by_gain", [False, True])
def test_another_tenant_s_texts_change_no_draft(*, by_gain: bool) -> None:
    curve = CostCurve((1, 64), (10, 12))

    def run(*, others: bool) -> list[tuple[tuple[int, ...], ...]]:
        costs = StepCosts(LiveCosts(curve)) if by_gain else None
        harness = Harness(CONFIG, FakeRunner(2048, VOCABULARY.size, costs=StepCosts(LiveCosts(curve))))
        harness.scheduler = Scheduler(CONFIG, VOCABULARY, costs=costs)
        for name in ("a", "b", "c") if others else ():
            add(harness, name, PROMPT, tenant="other")
            harness.run()
        start = len(harness.plans)
        for name in ("x", "y"):
            add(harness, name, PROMPT, tenant="mine")
            harness.run()
        harness.assert_all_right()
        return drafted(harness, start)

    alone = run(others=False)
    assert run(others=True) == alone
    assert any(row for step in alone for row in step), "the second request is drafted from the first"


def test_the_drafter_that_is_expected_to_be_right_more_often_is_asked_first() -> None:
    """Two plug-ins, one always wrong: it is compared for free, and soon gets no rows."""

    @dataclass
    class Fixed:
        name: str
        answer: tuple[int, ...]
        shift: int

        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            done = [request.tokens.size - len(PROMPT) for request in requests]
            return [Proposal(tuple((t + self.shift) % 20 for t in self.answer[at : at + 4])) for at in done]

    plain = Harness(replace(CONFIG, speculation=0))
    add(plain, "a", PROMPT)
    plain.run()
    lookups = [Fixed("wrong", plain.tokens("a"), 1), Fixed("right", plain.tokens("a"), 0)]
    harness = Harness(CONFIG, lookups=lookups)
    add(harness, "a", PROMPT)
    harness.run()
    harness.assert_all_right()
    drafters = harness.usage("a").drafters
    assert drafters["right"][1] > 35
    assert drafters["wrong"][0] <= 12


class Grammar:
    """Leaves one legal token at every index but each third: the one the answer has there, when `is_right`."""

    def __init__(self, answer: tuple[int, ...], *, is_right: bool = True) -> None:
        self.answer, self.is_right, self.asked = answer, is_right, 0

    def forced(self, output: Tokens, limit: int) -> Sequence[int]:
        self.asked += 1
        at = output.size
        end = min(at + (-at) % 3, len(self.answer), at + limit)
        return [token if self.is_right else (token + 1) % 20 for token in self.answer[at:end]]


def answer_to_the_prompt() -> tuple[int, ...]:
    plain = Harness(replace(CONFIG, speculation=0))
    add(plain, "a", PROMPT)
    plain.run()
    return plain.tokens("a")


def test_forced_tokens_come_first_in_a_block() -> None:
    grammar = Grammar(answer_to_the_prompt())
    harness = Harness(CONFIG)
    add(harness, "a", PROMPT, forced=grammar)
    harness.run()
    harness.assert_all_right()
    drafted, accepted = harness.usage("a").drafters["forced"]
    assert drafted == accepted >= 35
    assert len(harness.plans) <= 25


def test_wrong_forced_tokens_cost_speed_only_and_not_for_long() -> None:
    curve = CostCurve((1, 2, 64), (10, 14, 200))
    harness = Harness(CONFIG, FakeRunner(2048, VOCABULARY.size, costs=StepCosts(LiveCosts(curve))))
    harness.scheduler = Scheduler(CONFIG, VOCABULARY, costs=StepCosts(LiveCosts(curve)))
    add(harness, "a", PROMPT, forced=Grammar(answer_to_the_prompt(), is_right=False))
    harness.run()
    harness.assert_all_right()
    assert harness.usage("a").drafters["forced"][0] <= 10


def test_a_lookup_that_goes_on_beyond_forced_tokens_is_followed_and_one_that_contradicts_them_is_not() -> None:
    answer = answer_to_the_prompt()

    @dataclass
    class Longer:
        name: str
        shift: int

        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            done = [request.tokens.size - len(PROMPT) for request in requests]
            return [Proposal(tuple((t + self.shift) % 20 for t in answer[at : at + 8])) for at in done]

    harness = Harness(CONFIG, lookups=[Longer("bad", 1), Longer("good", 0)])
    add(harness, "first", PROMPT, forced=Grammar(answer))
    harness.run()
    harness.assert_all_right()
    drafters = harness.usage("first").drafters
    assert drafters["good"][1] >= 20
    assert drafters.get("bad", (0, 0))[1] == 0


class Raising:
    def forced(self, output: Tokens, limit: int) -> Sequence[int]:
        raise RuntimeError(f"no grammar for {output}, {limit}")


class Nonsense:
    def forced(self, output: Tokens, limit: int) -> Sequence[int]:
        return [10**9] * (output.size + limit)


@pytest.mark.parametrize("hook", [Raising(), Nonsense()])
def test_a_broken_hook_costs_nobody_his_answer(hook: ForcedTokens) -> None:
    harness = Harness(CONFIG)
    add(harness, "a", PROMPT, forced=hook)
    add(harness, "b", [5, 4, 3], forced=Grammar(()))
    harness.run()
    harness.assert_all_right()


@dataclass
class Odd:
    """A plug-in that proposes whatever it was made with."""

    proposal: object
    name: str = "odd"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self.proposal] * len(requests)  # type: ignore[list-item]


@pytest.mark.parametrize(
    "proposal",
    [
        None,
        Proposal(([1],)),  # type: ignore[arg-type]
        Proposal((1,), grade={}),  # type: ignore[arg-type]
        Proposal((1, 2), grade=10**30),
        Proposal(np.array([1, 2, 3])),  # type: ignore[arg-type]
        Proposal((1, 2), origins=(("odd", 7),)),
        Proposal((-1, 10**20)),
    ],
)
def test_odd_proposals_of_a_plug_in_end_nothing(proposal: object) -> None:
    harness = Harness(CONFIG, lookups=[NgramDrafter(), Odd(proposal)])
    add(harness, "a", PROMPT)
    harness.run()
    harness.assert_all_right()


@pytest.mark.parametrize("name", ["draft", "forced", "target", "ngram", "suffix"])
def test_a_plug_in_takes_nobody_s_name(name: str) -> None:
    lookups: list[Drafter] = [*own_lookups(CONFIG), Odd(Proposal(), name)]
    with pytest.raises(ValueError, match=name):
        Scheduler(CONFIG, VOCABULARY, lookups=lookups)


def test_without_speculation_or_room_there_is_no_index() -> None:
    assert [drafter.name for drafter in own_lookups(CONFIG)] == ["ngram", "suffix"]
    for off in (replace(CONFIG, speculation=0), replace(CONFIG, suffix_tokens=0)):
        assert not any(isinstance(drafter, SuffixIndex) for drafter in own_lookups(off))
