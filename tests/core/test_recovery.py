"""Failed steps: who is to blame is found by halving, nobody else notices, and what is known of memory is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.core.config import SchedulerConfig
from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.history import TokenHistory
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.step import FailureKind, SequenceFault, StepFailure, StepPlan, StepResult
from forerun.errors import GrammarFailedError, StepFailedError
from forerun.testing import FakeConstraint, FakeDrafter, FakeRunner, FakeVocabulary
from tests.core.harness import VOCABULARY, Harness

GRAMMAR = Grammar(GrammarKind.REGEX, "what it says does not matter: constraints say what comes")


def harness(runner: FakeRunner | None = None, **changes: Any) -> Harness:
    usual = SchedulerConfig(n_ctx=4096, n_seq_max=32, max_num_seqs=16, min_prefix_tokens=16)
    config = replace(usual, **changes)
    return Harness(config, runner or FakeRunner(config.n_ctx, VOCABULARY.size, kind=config.memory))


def tokens(seed: int, count: int = 20) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY.size, count)]


def fails_with(to: Harness, name: str, kind: FailureKind = FailureKind.FAILED) -> list[set[str | None]]:
    """From now on every step with this request fails; who was in each of those."""
    failed: list[set[str | None]] = []

    def faults(plan: StepPlan) -> StepFailure | None:
        names = {to.scheduler.request_of(sequence_id) for sequence_id in plan.sequence_ids()}
        if name not in names:
            return None
        failed.append(names)
        return StepFailure(kind, "bad tokens")

    to.runner.faults = faults
    return failed


def assert_others_are_right(to: Harness, culprit: str) -> None:
    for name in to.requests.keys() - {culprit}:
        assert to.answer(name) == to.expected(name), name
    pool = to.scheduler.pool
    assert pool.free_ids + pool.idle_ids == to.config.n_seq_max


@pytest.mark.parametrize("kind", FailureKind)
@pytest.mark.parametrize("memory", [DENSE, MemoryKind(window=5), MemoryKind(has_state=True)], ids=str)
def test_the_culprit_among_eight_is_found_by_halving_and_ends_alone(kind: FailureKind, memory: MemoryKind) -> None:
    to = harness(memory=memory)
    for index in range(8):
        to.add(f"r{index}", tokens(index), SamplingParams(max_tokens=10))
    to.run(until=lambda: all(map(to.tokens, to.requests)))
    failed = fails_with(to, "r5", kind)
    to.run()
    cut_short = kind is FailureKind.ABORTED  # the first time that may have been wanted
    assert [len(names) for names in failed] == [8] * cut_short + [8, 4, 2, 1, 1, 1]
    assert to.answer("r5").finish_reason is FinishReason.ERROR
    error = to.deltas["r5"][-1].error
    assert isinstance(error, StepFailedError)
    assert "bad tokens" in str(error)
    assert_others_are_right(to, "r5")


def test_all_others_take_turns_with_the_suspects() -> None:
    to = harness()
    for index in range(4):
        to.add(f"r{index}", tokens(index), SamplingParams(max_tokens=10))
    to.run(until=lambda: all(map(to.tokens, to.requests)))
    failed = fails_with(to, "r1")
    to.run(until=lambda: len(failed) == 1)
    to.add("late", tokens(9), SamplingParams(max_tokens=3))
    to.run(until=lambda: to.deltas["late"][-1:] != [] and to.deltas["late"][-1].finish_reason is not None)
    assert to.answer("late") == to.expected("late")
    assert not to.deltas["r1"][-1].finish_reason, "the search goes on meanwhile"
    assert len(failed) > 1, "and got further"
    to.run()
    assert_others_are_right(to, "r1")


def test_a_fault_of_the_moment_ends_nobody_though_it_strikes_the_same_request_alone() -> None:
    to = harness()
    failing = iter([False] * 3 + [True] * 2)
    to.runner.faults = lambda _: StepFailure(FailureKind.FAILED, "a moment") if next(failing, False) else None
    to.add("alone", tokens(0), SamplingParams(max_tokens=10))
    to.run()
    to.assert_all_right()


def test_memory_that_is_thrown_away_before_the_last_try_may_be_what_was_wrong() -> None:
    to = harness()
    to.add("alone", tokens(0), SamplingParams(max_tokens=10))
    to.run(until=lambda: len(to.tokens("alone")) == 3)
    broken = to.scheduler.pool.target_cells.held(0)
    to.runner.faults = lambda plan: (
        StepFailure(FailureKind.NO_ROOM, "broken cells") if plan.decode and plan.decode[0].position == broken else None
    )
    to.run(until=lambda: bool(to.plans[-1].prefill) and to.plans[-1].prefill[-1].sampling is not None)
    to.run()
    to.assert_all_right()
    assert sum(bool(plan.prefill) for plan in to.plans) == 2, "its prompt was computed twice, not more often"


def test_where_the_runner_knows_what_is_left_nothing_is_computed_again() -> None:
    plain, disturbed = harness(), harness()
    failing = iter([False] * 6 + [True])
    disturbed.runner.faults = lambda _: StepFailure(FailureKind.NO_ROOM, "once") if next(failing, False) else None
    for to in (plain, disturbed):
        for index in range(5):
            to.add(f"r{index}", tokens(index, 100), SamplingParams(max_tokens=10))
        to.run()
        to.assert_all_right()
    assert disturbed.runner.rows == plain.runner.rows


def test_what_was_evaluated_of_a_prompt_before_its_step_was_cut_short_stays() -> None:
    to = harness()
    cut_short = iter([True])
    to.runner.faults = lambda _: StepFailure(FailureKind.ABORTED, "wanted") if next(cut_short, False) else None
    to.add("long", tokens(0, 300), SamplingParams(max_tokens=4))
    to.step()
    assert to.scheduler.pool.target_cells.held(0) == 150
    to.run()
    assert to.runner.rows == 300 + 3
    to.assert_all_right()


# --- rows that fail by themselves ----------------------------------------------------------


def broken_rows(to: Harness, name: str, fault: SequenceFault) -> None:
    """From now on this request gets nothing of a step."""

    def faults(plan: StepPlan) -> dict[int, SequenceFault]:
        rows = (*plan.decode, *plan.prefill)
        sampled = [row.sequence_id for row in rows if row.sampling is not None]
        return {key: fault for key in sampled if to.scheduler.request_of(key) == name}

    to.runner.faults = faults


def test_logits_that_are_no_numbers_fail_no_step_and_end_their_request_at_the_third_time() -> None:
    to = harness()
    for index in range(4):
        to.add(f"r{index}", tokens(index), SamplingParams(max_tokens=10))
    to.run(until=lambda: all(map(to.tokens, to.requests)))
    broken_rows(to, "r2", SequenceFault("NaN"))
    before = len(to.tokens("r0"))
    _, result = to.step()
    assert result.failure is None
    assert len(to.tokens("r0")) == before + 1, "the others got their tokens in the same step"
    to.run()
    assert to.answer("r2").finish_reason is FinishReason.ERROR
    assert sum(bool(plan.prefill) for plan in to.plans) == 3, "its prompt, and two rebuilds"
    assert_others_are_right(to, "r2")


def test_logits_that_are_numbers_the_next_time_end_nobody() -> None:
    to = harness()
    to.add("r", tokens(0), SamplingParams(max_tokens=10))
    faults = iter([{}, {}, {0: SequenceFault("NaN")}, {0: SequenceFault("NaN")}])
    to.runner.faults = lambda _: next(faults, None)
    to.run()
    to.assert_all_right()


def test_a_request_that_bans_every_token_ends_at_once_and_alone() -> None:
    to = harness()
    to.add("other", tokens(0), SamplingParams(max_tokens=10))
    banned = dict.fromkeys(range(VOCABULARY.size), float("-inf"))
    to.add("banned", tokens(1), SamplingParams(max_tokens=10, logit_bias=banned))
    _, result = to.step()
    assert result.failure is None
    assert "logit_bias" in str(to.deltas["banned"][-1].error)
    to.run()
    assert_others_are_right(to, "banned")


class Raising(FakeConstraint):
    """Lets anything come until the answer has some tokens."""

    def __init__(self, vocabulary: FakeVocabulary, method: str) -> None:
        super().__init__(vocabulary, lambda _: range(vocabulary.size))
        self._method = method

    def _raise(self, method: str, history: TokenHistory) -> None:
        if method == self._method and history.output_tokens >= 3:
            raise ZeroDivisionError(method)

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:
        self._raise("allowed", history)
        return super().allowed(history, block)

    def accepted(self, history: TokenHistory, block: Sequence[int], tokens: Sequence[int]) -> int:
        self._raise("accepted", history)
        return super().accepted(history, block, tokens)

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:
        self._raise("forced", history)
        return super().forced(history, limit)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["allowed", "accepted", "forced"])
def test_a_grammar_that_raises_ends_its_own_answer_and_no_other(method: str, temperature: float) -> None:
    vocabulary = FakeVocabulary([bytes([97 + index]) for index in range(20)], end_tokens=(19,))
    config = SchedulerConfig(n_ctx=4096, n_seq_max=8, max_num_seqs=4, speculation=3)
    to = Harness(config, FakeRunner(4096, vocabulary.size), vocabulary)
    to.add("other", tokens(0), SamplingParams(max_tokens=10, ignore_eos=True))
    constraint = Raising(vocabulary, method)
    params = SamplingParams(max_tokens=10, temperature=temperature, seed=1, grammar=GRAMMAR)
    to.add("raising", tokens(1), params, constraint=constraint)
    to.run()
    error = to.deltas["raising"][-1].error
    if error is not None:  # greedily it may never be asked which tokens are allowed
        assert isinstance(error, GrammarFailedError)
        assert "ZeroDivisionError" in str(error)
    assert error is not None or (method == "allowed" and not temperature) or len(to.tokens("raising")) < 4
    assert_others_are_right(to, "raising")


# --- drafts ----------------------------------------------------------


class BreakingDraft(FakeRunner):
    """The draft model fails for one sequence, once."""

    broken: int | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        wanted = [request.sequence_id for request in plan.draft_requests]
        if self.broken not in wanted:
            return result
        assert self.broken is not None
        broken, self.broken = self.broken, None
        return replace(result, draft_faults=(broken,))


def test_a_draft_model_that_fails_for_a_request_drafts_for_the_others_only() -> None:
    drafter = FakeDrafter(4096, VOCABULARY.size, 1.0)
    runner = BreakingDraft(4096, VOCABULARY.size, drafter=drafter)
    to = Harness(SchedulerConfig(n_ctx=4096, speculation=3, draft_n_ctx=4096), runner, lookups=[])
    for index in range(3):
        to.add(f"r{index}", tokens(index), SamplingParams(max_tokens=40))
    to.run(until=lambda: all(map(to.tokens, to.requests)))
    runner.broken = 1
    to.run(until=lambda: runner.broken is None)
    after = len(to.plans)
    to.run()
    asked = {request.sequence_id for plan in to.plans[after:] for request in plan.draft_requests}
    assert asked == {0, 2}
    to.assert_all_right()


def test_a_request_drafts_again_after_one_failed_step_and_nothing_more_after_two() -> None:
    drafter = FakeDrafter(4096, VOCABULARY.size, 1.0)
    runner = FakeRunner(4096, VOCABULARY.size, drafter=drafter)
    to = Harness(SchedulerConfig(n_ctx=4096, speculation=3, draft_n_ctx=4096), runner, lookups=[])
    failed = 0

    def faults(plan: StepPlan) -> StepFailure | None:
        nonlocal failed
        failed += bool(plan.draft_requests)
        return StepFailure(FailureKind.FAILED, "drafts break it") if plan.draft_requests else None

    runner.faults = faults
    to.add("r", tokens(0), SamplingParams(max_tokens=60))
    to.run()
    assert failed == 2
    to.assert_all_right()
