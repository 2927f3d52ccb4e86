"""The scheduler's behaviour, one truth a test. Answers are always compared with the naive oracle."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.drafting import NgramDrafter
from forerun.core.memory import MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import FinishReason, Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import (
    DraftRequest,
    FailureKind,
    ForkSequence,
    PrefillRows,
    Proposal,
    StepFailure,
    StepPlan,
    StepResult,
)
from forerun.errors import InvalidRequestError, StepFailedError
from forerun.testing import FakeDrafter, FakeRunner, FakeVocabulary, naive_answer
from tests.core.harness import VOCABULARY, Harness


def config(**changes: Any) -> SchedulerConfig:
    usual = SchedulerConfig(n_ctx=4096, n_seq_max=32, max_num_seqs=8, min_prefix_tokens=16)
    return dataclasses.replace(usual, **changes)


def random_tokens(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY.size, count)]


def prefill_rows(plan: StepPlan) -> int:
    return sum(rows.tokens.size for rows in plan.prefill if isinstance(rows, PrefillRows))


# --- prefixes ----------------------------------------------------------


def test_requests_arriving_together_compute_their_shared_prefix_once() -> None:
    harness = Harness(config())
    shared = random_tokens(1000, seed=0)
    for index in range(8):
        harness.add(f"r{index}", [*shared, index, index])
    harness.run()
    harness.assert_all_right()
    assert sorted(harness.usage(f"r{index}").cached_tokens for index in range(8)) == [0, *[1000] * 7]
    evaluated_outputs = 8 * (4 - 1)
    assert harness.runner.rows == 1000 + 8 * 2 + evaluated_outputs


def test_a_follower_forks_from_a_leader_that_is_still_decoding() -> None:
    harness = Harness(config())
    harness.add("leader", random_tokens(100, seed=0), SamplingParams(max_tokens=50))
    harness.run(until=lambda: len(harness.tokens("leader")) > 10)
    harness.add("follower", [*random_tokens(100, seed=0), 1, 2, 3])
    harness.run(until=lambda: bool(harness.tokens("follower")))
    assert not harness.scheduler.abort("unknown", 0.0)
    assert len(harness.tokens("leader")) < 50, "the leader was still running"
    harness.run()
    harness.assert_all_right()
    assert harness.usage("follower").cached_tokens == 100


def test_output_of_a_running_request_is_reused_too() -> None:
    harness = Harness(config())
    prompt = random_tokens(30, seed=0)
    harness.add("leader", prompt, SamplingParams(max_tokens=60))
    harness.run(until=lambda: len(harness.tokens("leader")) == 40)
    harness.add("follower", [*prompt, *harness.tokens("leader"), 5])
    harness.run()
    harness.assert_all_right()
    assert harness.usage("follower").cached_tokens >= 30 + 39


def test_a_follower_does_not_wait_for_a_leader_that_went_away() -> None:
    harness = Harness(config(max_num_batched_tokens=16, prefill_quantum=16))
    harness.add("leader", random_tokens(400, seed=0))
    harness.step()
    harness.add("follower", [*random_tokens(400, seed=0), 1])
    harness.step()
    assert harness.scheduler.stats.waiting == 1
    harness.abort("leader")
    harness.run()
    assert harness.answer("follower") == harness.expected("follower")
    assert harness.usage("follower").cached_tokens == 32, "what the leader computed stays usable"


def test_a_follower_goes_on_once_its_prefix_is_there_though_one_behind_it_does_not_fit() -> None:
    harness = Harness(config(n_ctx=1000, max_num_batched_tokens=64))
    harness.add("leader", random_tokens(400, seed=0), SamplingParams(max_tokens=50))
    harness.step()
    harness.add("follower", [*random_tokens(400, seed=0), 1])
    harness.add("large", random_tokens(800, seed=1))
    harness.run(until=lambda: bool(harness.tokens("follower")))
    assert len(harness.tokens("leader")) < 10, "the leader was still running"
    harness.run()
    harness.assert_all_right()
    assert harness.usage("follower").cached_tokens == 400


def test_the_next_turn_reuses_prompt_and_answer_of_the_first() -> None:
    harness = Harness(config())
    first = random_tokens(50, seed=1)
    harness.add("first", first, SamplingParams(max_tokens=20))
    harness.run()
    harness.add("second", [*first, *harness.tokens("first"), 7, 8, 9])
    harness.run()
    harness.assert_all_right()
    # The last token sampled was never put into memory.
    assert harness.usage("second").cached_tokens == 50 + 20 - 1
    assert harness.scheduler.stats.cached_prefixes == 1, "a source wholly contained in the new prompt is taken over"


def test_a_cached_conversation_survives_a_branch_from_its_middle() -> None:
    harness = Harness(config())
    prompt = random_tokens(200, seed=1)
    harness.add("long", prompt, SamplingParams(max_tokens=50))
    harness.run()
    harness.add("branch", [*prompt[:120], 1, 2, 3])
    harness.run()
    harness.add("again", [*prompt, *harness.tokens("long"), 4])
    harness.run()
    harness.assert_all_right()
    assert harness.usage("branch").cached_tokens == 120
    assert harness.usage("again").cached_tokens == 200 + 49


def test_the_same_prompt_again_evaluates_one_token_and_answers_the_same() -> None:
    """Case K3: three times, then a token less, then a token more; and a prompt of one token twice."""
    harness = Harness(config())
    prompt = random_tokens(40, seed=2)
    for index, tokens in enumerate([prompt, prompt, prompt, prompt[:-1], [*prompt, 3], [4], [4]]):
        harness.add(f"r{index}", tokens, SamplingParams(max_tokens=6))
        harness.run()
    harness.assert_all_right()
    cached = [harness.usage(f"r{index}").cached_tokens for index in range(7)]
    # The answer's first token is what a longer prompt may begin with, hence "at least".
    assert cached[:4] == [0, 39, 39, 38]
    assert cached[4] >= 40
    assert cached[5:] == [0, 0]


def test_many_more_prefixes_are_cached_than_requests_run() -> None:
    harness = Harness(config(n_seq_max=48, max_num_seqs=2))
    prompts = [random_tokens(40, seed=seed) for seed in range(20)]
    for index, prompt in enumerate(prompts):
        harness.add(f"r{index}", prompt)
    harness.run()
    for index, prompt in enumerate(prompts):
        harness.add(f"again{index}", [*prompt, 1, 2])
    harness.run()
    harness.assert_all_right()
    assert all(harness.usage(f"again{index}").cached_tokens >= 40 for index in range(20))


def test_no_request_fails_because_cached_prefixes_fill_the_memory() -> None:
    harness = Harness(config(n_ctx=256, n_seq_max=16, max_num_seqs=3))
    for index in range(40):
        harness.add(f"r{index}", random_tokens(60, seed=index), SamplingParams(max_tokens=20))
    harness.run()
    harness.assert_all_right()


def test_the_least_recently_used_prefix_goes_first() -> None:
    harness = Harness(config(n_ctx=300, max_num_seqs=1))
    a, b, c = (random_tokens(100, seed=seed) for seed in range(3))
    one = SamplingParams(max_tokens=1)
    for name, tokens in {"a": a, "b": b, "a-again": [*a, 1], "c": c, "a-third": [*a, 2], "b-again": [*b, 1]}.items():
        harness.add(name, tokens, one)
        harness.run()
    harness.assert_all_right()
    assert harness.usage("a-third").cached_tokens == 100
    assert harness.usage("b-again").cached_tokens < 100


def test_without_reuse_every_prompt_is_computed_from_scratch() -> None:
    scheduler_config = SchedulerConfig(n_ctx=512, reuse_prefixes=False)
    harness = Harness(scheduler_config)
    for index in range(3):
        harness.add(f"r{index}", random_tokens(50, seed=0))
    harness.run()
    harness.assert_all_right()
    assert [harness.usage(f"r{index}").cached_tokens for index in range(3)] == [0, 0, 0]
    assert harness.runner.rows == 3 * (50 + 3)
    assert harness.scheduler.stats.used_cells == 0


def test_an_unrelated_prompt_never_continues_an_old_conversation() -> None:
    """Case K1: finished conversations, then unrelated requests alone and in pairs, through two running requests."""
    harness = Harness(config(n_ctx=1024, n_seq_max=6, max_num_seqs=2))
    for index in range(30):
        harness.add(f"old{index}", random_tokens(30, seed=index), SamplingParams(max_tokens=10))
        harness.run()
    for index in range(40):
        harness.add(f"new{index}", random_tokens(12 + index, seed=1000 + index), SamplingParams(max_tokens=10))
        if index % 3:
            harness.run()
    harness.run()
    harness.assert_all_right()


# --- batching ----------------------------------------------------------


def test_decode_rows_come_first_and_a_long_prompt_takes_turns_with_a_short_one() -> None:
    harness = Harness(config(max_num_batched_tokens=64, prefill_rows_beside_decode=16, prefill_quantum=8))
    harness.add("stream", [1, 2, 3], SamplingParams(max_tokens=200))
    harness.run(until=lambda: bool(harness.tokens("stream")))
    harness.add("long", random_tokens(1000, seed=0))
    harness.step()
    harness.add("short", random_tokens(20, seed=1))
    before = len(harness.plans)
    harness.run(until=lambda: bool(harness.tokens("short")))
    for plan in harness.plans[before:]:
        assert len(plan.decode) >= 1, "the stream gets its token in every step"
        assert prefill_rows(plan) <= 16
    assert len(harness.plans) - before <= 4, "a 20-token prompt does not wait for a 1,000-token one"
    assert not harness.tokens("long")
    harness.run()
    harness.assert_all_right()


def test_alone_a_prompt_takes_the_whole_batch() -> None:
    harness = Harness(config(max_num_batched_tokens=512))
    harness.add("alone", random_tokens(1100, seed=0))
    harness.run()
    assert [prefill_rows(plan) for plan in harness.plans[:3]] == [512, 512, 76]


def test_one_to_sixteen_requests_join_and_leave_at_any_step() -> None:
    """Case B3 on the fake model: prompts of very different lengths, arriving while others run."""
    harness = Harness(config(n_ctx=16384, max_num_seqs=16, n_seq_max=40))
    lengths = [5, 3000, 17, 900, 40, 1200, 8, 333, 64, 2000, 5, 700, 128, 31, 450, 77]
    for index, length in enumerate(lengths):
        harness.add(f"r{index}", random_tokens(length, seed=index), SamplingParams(max_tokens=3 + index))
        harness.step()
        if index == 9:
            harness.abort("r5")
    harness.run()
    for name in harness.requests:
        if name != "r5":
            assert harness.answer(name) == harness.expected(name)


def test_a_request_that_lost_its_cells_goes_on_exactly_where_it_was() -> None:
    harness = Harness(config(n_ctx=100, max_num_seqs=3))
    for index in range(3):
        harness.add(f"r{index}", random_tokens(10, seed=index), SamplingParams(max_tokens=60))
    harness.run()
    harness.assert_all_right()
    assert harness.runner.rows > 3 * 69, "the memory was too small for all three: some tokens were computed again"


def test_a_request_that_reaches_the_end_of_the_context_finishes_as_length() -> None:
    harness = Harness(config(n_ctx=64))
    harness.add("r", random_tokens(60, seed=0), SamplingParams())
    harness.add("full", random_tokens(64, seed=1), SamplingParams())
    harness.run()
    harness.assert_all_right()
    assert harness.answer("r").finish_reason is FinishReason.LENGTH
    assert len(harness.tokens("r")) == 5
    assert len(harness.tokens("full")) == 1, "the last token needs no cell"


def test_an_image_is_evaluated_whole_and_its_prefix_reused() -> None:
    image = PromptSegment.media("image-a", logical_tokens=40, native_positions=3)
    layout = PromptLayout([PromptSegment.text([1, 2]), image, PromptSegment.text([3])])
    harness = Harness(config(max_num_batched_tokens=16))
    harness.add("first", layout)
    harness.run()
    harness.add("second", PromptLayout([*layout.segments, PromptSegment.text([4])]))
    other = PromptSegment.media("image-b", logical_tokens=40, native_positions=3)
    harness.add("other", PromptLayout([PromptSegment.text([1, 2]), other, PromptSegment.text([3])]))
    harness.run()
    harness.assert_all_right()
    assert harness.usage("second").cached_tokens == 43
    assert harness.usage("other").cached_tokens <= 2


# --- speculation -------------------------------------------------------


class GenerousScheduler(Scheduler):
    """Admits whoever there is an id for, so that those who run block each other."""

    def _fits(self, *_: object) -> bool:
        return True


def test_operations_of_a_plan_that_was_given_up_are_not_lost() -> None:
    harness = Harness(config(n_ctx=64))
    harness.scheduler = GenerousScheduler(harness.config, VOCABULARY)
    harness.add("cached", random_tokens(8, seed=9), SamplingParams(max_tokens=1))
    harness.run()
    for index in range(2):  # both hold 20 cells and need 30 more at once; the cached prefix is evicted in vain
        image = PromptSegment.media(f"image-{index}", 30, 30)
        harness.add(f"r{index}", PromptLayout([PromptSegment.text([index] * 20), image, PromptSegment.text([7])]))
    while harness.scheduler.has_work:
        _, result = harness.step()
        assert result.failure is None
    harness.assert_all_right()


def speculative(quality: float, most: int, **changes: int) -> Harness:
    scheduler_config = config(**{"speculation": most, "draft_n_ctx": changes.get("n_ctx", 4096), **changes})
    drafter = FakeDrafter(scheduler_config.draft_n_ctx, VOCABULARY.size, quality)
    runner = FakeRunner(scheduler_config.n_ctx, VOCABULARY.size, drafter=drafter)
    return Harness(scheduler_config, runner, lookups=[NgramDrafter(longest=12, shortest=12)])


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("most", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("quality", [0.0, 1.0])
def test_exactly_max_tokens_are_delivered_whatever_the_draft_length(quality: float, most: int, requests: int) -> None:
    """Case S10."""
    harness = speculative(quality, most)
    for max_tokens, index in itertools.product([1, 2, 3, 7, 8, 9, 31, 32, 33], range(requests)):
        harness.add(f"{max_tokens}-{index}", random_tokens(10, seed=index), SamplingParams(max_tokens=max_tokens))
    harness.run()
    harness.assert_all_right()
    for name, request in harness.requests.items():
        assert len(harness.tokens(name)) == harness.usage(name).output_tokens == request.params.max_tokens


@pytest.mark.parametrize("offset", range(16))
def test_a_stop_inside_an_accepted_block_ends_the_answer_there(offset: int) -> None:
    """Case S5: draft = target, 16 tokens a block; the stop lies at each offset of the second block."""
    prompt = random_tokens(12, seed=5)
    expected = naive_answer(PromptLayout.of_text(prompt), SamplingParams(max_tokens=64), VOCABULARY, 4096).text
    position = 18 + offset
    stop = next(
        expected[position : position + size]
        for size in range(1, 20)
        if expected.find(expected[position : position + size]) == position
    )
    harness = speculative(1.0, 16)
    harness.add("r", prompt, SamplingParams(max_tokens=64, stop=(stop,)))
    harness.run()
    harness.assert_all_right()
    assert harness.answer("r").text == expected[:position]
    assert harness.answer("r").finish_reason is FinishReason.STOP
    assert [delta.stop_string for delta in harness.deltas["r"]][-2:] == [None, stop]
    (prefix,) = harness.scheduler.pool.idle.values()
    assert prefix.layout.text_tokens.tolist() == [*prompt, *harness.tokens("r")][: prefix.layout.logical_tokens]


def test_an_end_token_inside_an_accepted_block_ends_the_answer_there() -> None:
    vocabulary = FakeVocabulary([bytes([97 + index]) for index in range(20)], end_tokens=range(4))
    drafter = FakeDrafter(4096, vocabulary.size, quality=1.0)
    harness = Harness(
        config(speculation=16, draft_n_ctx=4096), FakeRunner(4096, vocabulary.size, drafter=drafter), vocabulary
    )
    for seed in range(20):
        harness.add(f"r{seed}", random_tokens(8, seed=seed), SamplingParams(max_tokens=64))
    harness.run()
    harness.assert_all_right()
    ends = {harness.answer(f"r{seed}").finish_reason for seed in range(20)}
    assert ends == {FinishReason.STOP}


@pytest.mark.parametrize("draft_n_ctx", range(66, 78))
def test_catching_up_leaves_the_draft_memory_room_for_the_drafts_of_the_same_step(draft_n_ctx: int) -> None:
    harness = speculative(1.0, 4, draft_n_ctx=draft_n_ctx)
    for index in range(3):
        harness.add(f"r{index}", random_tokens(20 + index, seed=index), SamplingParams(max_tokens=40))
        while len(harness.tokens(f"r{index}")) <= 8:
            harness.step()
    while harness.scheduler.has_work:
        _, result = harness.step()
        assert result.failure is None
    harness.assert_all_right()


class StumblingRunner(FakeRunner):
    """Its draft model keeps five tokens of whatever it is filled with, as after a decode that failed."""

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        assert self.drafter is not None
        for fill in plan.draft_fills:
            self.drafter.memory.truncate(fill.sequence_id, 5)
        return dataclasses.replace(result, draft_held={key: min(held, 5) for key, held in result.draft_held.items()})


def test_a_draft_fill_that_failed_is_not_believed() -> None:
    harness = speculative(1.0, 4)
    harness.runner = StumblingRunner(4096, VOCABULARY.size, drafter=harness.runner.drafter)
    assert harness.runner.drafter is not None
    harness.add("r", random_tokens(60, seed=0), SamplingParams(max_tokens=20))
    while harness.scheduler.has_work:
        harness.step()
        if not harness.scheduler.pool.pending_operations:
            assert harness.scheduler.pool.draft_cells.held(0) == harness.runner.drafter.memory.held(0) <= 5
    harness.assert_all_right()


def test_a_draft_equal_to_the_target_is_accepted_whole_and_never_evaluated_twice() -> None:
    harness = speculative(1.0, 4)
    harness.add("r", random_tokens(30, seed=0), SamplingParams(max_tokens=51))
    harness.run()
    harness.assert_all_right()
    usage = harness.usage("r")
    assert usage.accepted_tokens == usage.drafted_tokens >= 36
    assert isinstance(harness.runner.drafter, FakeDrafter)
    assert harness.runner.drafter.rows <= 30 + 51, "each token went through the draft at most once"


def test_a_fork_takes_the_draft_s_memory_along() -> None:
    harness = speculative(1.0, 4)
    prompt = random_tokens(200, seed=0)
    harness.add("first", prompt, SamplingParams(max_tokens=20))
    harness.run()
    assert isinstance(harness.runner.drafter, FakeDrafter)
    before = harness.runner.drafter.rows
    harness.add("branch", [*prompt[:150], 1, 2, 3], SamplingParams(max_tokens=20))
    harness.run()
    harness.assert_all_right()
    assert harness.runner.drafter.rows - before < 40, "the 150 shared tokens did not go through the draft again"


def test_a_draft_context_smaller_than_the_text_stops_drafting_and_nothing_else() -> None:
    scheduler_config = config(speculation=5, draft_n_ctx=40)
    harness = Harness(
        scheduler_config, FakeRunner(4096, VOCABULARY.size, drafter=FakeDrafter(40, VOCABULARY.size, quality=1.0))
    )
    harness.add("grows", random_tokens(20, seed=0), SamplingParams(max_tokens=100))
    harness.add("long", random_tokens(300, seed=1), SamplingParams(max_tokens=30))
    harness.run()
    harness.assert_all_right()
    assert 0 < harness.usage("grows").accepted_tokens < 40


def test_ngram_drafts_are_accepted_where_the_text_repeats() -> None:
    vocabulary = FakeVocabulary([b"a", b"b"], end_tokens=())
    harness = Harness(config(speculation=4), FakeRunner(4096, vocabulary.size), vocabulary)
    harness.add("r", [0, 1] * 10, SamplingParams(max_tokens=200, logit_bias={0: -100.0}))
    harness.run()
    harness.assert_all_right()
    assert harness.usage("r").accepted_tokens > 150
    assert len(harness.plans) < 50


class _BadDrafter:
    """A plug-in that breaks every promise, one at a time."""

    name = "bad"

    def __init__(self, proposal: Proposal | None, count: int = 0) -> None:
        self.proposal = proposal
        self.count = count
        self.calls = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        self.calls += 1
        if self.proposal is None:
            raise ZeroDivisionError("a fault nobody foresaw")
        return [self.proposal] * (self.count or len(requests))


@pytest.mark.parametrize(
    ("drafter", "raises"),
    [
        pytest.param(_BadDrafter(None), True, id="raises"),
        pytest.param(_BadDrafter(Proposal((1,)), count=7), True, id="wrong number"),
        pytest.param(_BadDrafter(Proposal((1,) * 1000)), False, id="too long"),
        pytest.param(_BadDrafter(Proposal((1, 20, 1))), False, id="outside the vocabulary"),
        pytest.param(_BadDrafter(Proposal((-1, 1))), False, id="negative"),
    ],
)
def test_a_faulty_drafter_changes_no_answer_and_ends_nothing(
    drafter: _BadDrafter, *, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(config(speculation=4), lookups=[drafter])
    for index in range(3):
        harness.add(f"r{index}", random_tokens(20, seed=index), SamplingParams(max_tokens=20))
    harness.run()
    harness.assert_all_right()
    assert all(len(row.drafts) <= 4 for plan in harness.plans for row in plan.decode)
    assert (drafter.calls == 1) == raises, "one that fails is not asked again"
    assert ("is not asked again" in caplog.text) == raises


def test_a_request_may_turn_speculation_off_for_itself() -> None:
    harness = speculative(1.0, 4)
    harness.add("off", random_tokens(30, seed=0), SamplingParams(max_tokens=20, speculation="off"))
    harness.add("one", random_tokens(30, seed=1), SamplingParams(max_tokens=20, speculation=1))
    harness.run()
    harness.assert_all_right()
    assert harness.usage("off").drafted_tokens == 0
    assert harness.usage("one").drafted_tokens == 9


@pytest.mark.parametrize("speculation", [None, 8, "auto", "off"])
def test_no_request_drafts_where_the_engine_does_not(speculation: Any) -> None:
    harness = Harness(config(speculation=0))
    harness.add("a", [1, 2, 3] * 5, SamplingParams(max_tokens=20, speculation=speculation))
    harness.run()
    harness.assert_all_right()
    assert harness.usage("a").drafted_tokens == 0


def test_a_request_cannot_raise_the_engines_number_of_drafts() -> None:
    harness = speculative(1.0, 2)
    harness.add("many", random_tokens(30, seed=0), SamplingParams(max_tokens=20, speculation=64))
    harness.run()
    assert harness.usage("many").mean_accepted_length == pytest.approx(2, abs=0.3)


def test_automatic_speculation_is_refused_where_no_costs_were_measured() -> None:
    harness = Harness(config(speculation=4))
    with pytest.raises(InvalidRequestError) as refusal:
        harness.add("a", [1, 2, 3], SamplingParams(speculation="auto"))
    assert str(refusal.value) == (
        "speculation: cannot be 'auto': this engine drafts 4 tokens a step and has measured no costs; "
        "give a number, or load it with speculation='auto'"
    )


def test_drafts_leave_rows_to_a_prompt_that_waits() -> None:
    class EagerDrafter:
        name = "eager"

        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return [Proposal((0,) * request.limit) for request in requests]

    harness = Harness(config(max_num_seqs=9, max_num_batched_tokens=64, speculation=8), lookups=[EagerDrafter()])
    for index in range(8):
        harness.add(f"r{index}", random_tokens(8, seed=index), SamplingParams(max_tokens=300))
    harness.run(until=lambda: bool(harness.tokens("r7")))
    before = len(harness.plans)
    harness.add("late", random_tokens(50, seed=99), SamplingParams(max_tokens=1))
    harness.run(until=lambda: bool(harness.tokens("late")))
    assert len(harness.plans) - before < 5
    harness.run()
    harness.assert_all_right()


# --- failures ----------------------------------------------------------


def test_a_step_that_fails_once_changes_no_answer() -> None:
    failures = iter([None] * 5 + [StepFailure(FailureKind.FAILED, "once")])
    runner = FakeRunner(4096, VOCABULARY.size, faults=lambda _plan: next(failures, None))
    harness = Harness(config(), runner)
    for index in range(4):
        harness.add(f"r{index}", random_tokens(20, seed=index), SamplingParams(max_tokens=20))
    harness.run()
    harness.assert_all_right()


def test_a_request_whose_steps_always_fail_ends_alone() -> None:
    harness = Harness(config())

    def culprit_fails(plan: StepPlan) -> StepFailure | None:
        names = {harness.scheduler.request_of(sequence_id) for sequence_id in plan.sequence_ids()}
        return StepFailure(FailureKind.FAILED, "bad tokens") if "culprit" in names else None

    harness.runner.faults = culprit_fails
    for name in ("a", "culprit", "b"):
        harness.add(name, random_tokens(20, seed=len(name)), SamplingParams(max_tokens=10))
    harness.run()
    assert harness.answer("culprit").finish_reason is FinishReason.ERROR
    assert isinstance(harness.deltas["culprit"][-1].error, StepFailedError)
    assert harness.answer("a") == harness.expected("a")
    assert harness.answer("b") == harness.expected("b")
    assert harness.scheduler.pool.free_ids + harness.scheduler.pool.idle_ids == 32


def test_a_request_whose_drafts_fail_goes_on_without_them() -> None:
    harness = speculative(1.0, 4)
    harness.runner.faults = lambda plan: (
        StepFailure(FailureKind.FAILED, "drafts break it") if plan.draft_requests else None
    )
    for index in range(3):
        harness.add(f"r{index}", random_tokens(20, seed=index), SamplingParams(max_tokens=30))
    harness.run()
    harness.assert_all_right()
    failed = sum(bool(plan.draft_requests) for plan in harness.plans)
    assert failed <= 3, "no request drafts again after a failed step"


def test_a_state_is_never_cut_and_answers_stay_right() -> None:
    state = MemoryKind(has_state=True)
    harness = Harness(config(memory=state), FakeRunner(4096, VOCABULARY.size, kind=state))
    prompt = random_tokens(40, seed=0)
    harness.add("first", prompt, SamplingParams(max_tokens=10))
    harness.run()
    harness.add("shorter", prompt[:20], SamplingParams(max_tokens=10))
    harness.add("branch", [*prompt[:30], 1], SamplingParams(max_tokens=10))
    harness.run()
    harness.assert_all_right()


def test_an_aborted_request_leaves_what_it_computed_for_others() -> None:
    harness = Harness(config(max_num_batched_tokens=32))
    prompt = random_tokens(200, seed=0)
    harness.add("first", prompt)
    harness.step()
    harness.step()
    harness.abort("first")
    assert harness.deltas["first"][-1].finish_reason is FinishReason.ABORT
    harness.add("second", prompt)
    harness.run()
    assert harness.answer("second") == harness.expected("second")
    assert harness.usage("second").cached_tokens == 64


# --- refusals ----------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "params", "field", "values"),
    [
        ([], SamplingParams(), "prompt", ["empty"]),
        ([1] * 65, SamplingParams(), "prompt", ["65", "64"]),
        ([20], SamplingParams(), "prompt", ["20"]),
        ([1], SamplingParams(logit_bias={99999999: 1.0}), "logit_bias", ["99999999", "20"]),
        ([1], SamplingParams(stop_token_ids=(20,)), "stop_token_ids", ["20"]),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_the_values(
    tokens: list[int], params: SamplingParams, field: str, values: list[str]
) -> None:
    harness = Harness(config(n_ctx=64))
    harness.add("running", [1, 2, 3])
    with pytest.raises(InvalidRequestError) as error:
        harness.add("bad", tokens, params)
    assert error.value.field == field
    assert all(value in str(error.value) for value in values)
    harness.run()
    harness.assert_all_right()


def test_the_queue_is_bounded() -> None:
    scheduler = Scheduler(config(max_queue=2), VOCABULARY)
    for index in range(2):
        scheduler.add(Request(id=str(index), prompt=PromptLayout.of_text([1]), params=SamplingParams()))
    with pytest.raises(InvalidRequestError, match="2 requests wait already"):
        scheduler.add(Request(id="3", prompt=PromptLayout.of_text([1]), params=SamplingParams()))


def test_a_fork_is_planned_before_its_source_can_be_evicted() -> None:
    harness = Harness(config(n_ctx=128, n_seq_max=3, max_num_seqs=2))
    prompt = random_tokens(60, seed=0)
    harness.add("source", prompt, SamplingParams(max_tokens=4))
    harness.run()
    harness.add("branch", [*prompt[:50], *random_tokens(60, seed=1)], SamplingParams(max_tokens=4))
    harness.run()
    harness.assert_all_right()
    forks = [op for plan in harness.plans for op in plan.operations if isinstance(op, ForkSequence)]
    assert len(forks) == 1
    assert harness.usage("branch").cached_tokens == 50


def test_nobody_waits_for_a_window_s_leader_that_is_past_what_they_share_and_cannot_be_cut_there() -> None:
    window = MemoryKind(window=16)
    harness = Harness(config(memory=window, max_num_batched_tokens=256), FakeRunner(4096, VOCABULARY.size, kind=window))
    shared = random_tokens(100, seed=0)
    harness.add("leader", [*shared, *random_tokens(100, seed=1)], SamplingParams(max_tokens=300))
    harness.run(until=lambda: bool(harness.deltas["leader"]))
    for _ in range(5):
        harness.step()
    harness.add("follower", [*shared, *random_tokens(20, seed=2)], SamplingParams(max_tokens=5))
    harness.run(until=lambda: any(delta.finish_reason for delta in harness.deltas["follower"]))
    assert not any(delta.finish_reason for delta in harness.deltas["leader"]), "it did not wait for the leader's end"
    harness.run()
    harness.assert_all_right()


def test_control_tokens_that_a_request_asks_for_are_spelled_in_its_text_unless_they_end_it() -> None:
    vocabulary = FakeVocabulary([b"a", b"", b""], end_tokens=[2])
    harness = Harness(config(), FakeRunner(64, vocabulary.size), vocabulary)
    endless = SamplingParams(max_tokens=20, ignore_eos=True)
    harness.add("plain", [0, 0], endless)
    harness.add("shown", [0, 0], dataclasses.replace(endless, shown_tokens={1: "<call>"}))
    harness.add("ended", [0, 0], SamplingParams(max_tokens=20, stop_token_ids=(1,), shown_tokens={1: "<call>"}))
    harness.run()
    tokens = harness.tokens("plain")
    assert set(tokens) == {0, 1}, "the case shows nothing"
    assert harness.answer("plain").text == "a" * tokens.count(0)
    assert harness.tokens("shown") == tokens
    assert harness.answer("shown").text == "".join(["a", "<call>"][token] for token in tokens)
    assert "<call>" not in harness.answer("ended").text
