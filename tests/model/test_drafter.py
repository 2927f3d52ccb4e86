"""Draft and target memories stay in step, and no draft token is evaluated twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forerun.core.step import DraftFill, DraftRequest, ForkSequence, Proposal, StepPlan, TruncateSequence
from forerun.native.batch import Batch
from forerun.native.context import LlamaContext
from forerun.native.drafter import LlamaDrafter
from forerun.native.model import LlamaModel
from forerun.native.runner import LlamaRunner
from tests.model.conftest import MakeContext
from tests.model.driving import DrivenRequest, at, random_tokens

pytestmark = pytest.mark.model

PROMPT_TOKENS = 40
OUTPUT_TOKENS = 30

CountDecodes = Callable[[LlamaContext], list[int]]


def plain_greedy(context: LlamaContext, seed: int = 0, count: int = OUTPUT_TOKENS) -> list[int]:
    request = DrivenRequest(LlamaRunner(context), 0, random_tokens(PROMPT_TOKENS, seed))
    request.prefill()
    while len(request.output) < count:
        request.decode()
    context.clear_sequence(0)
    return request.output


def started(runner: LlamaRunner, sequence_id: int = 0, seed: int = 0) -> DrivenRequest:
    """A request after its prompt, its draft filled."""
    request = DrivenRequest(runner, sequence_id, random_tokens(PROMPT_TOKENS, seed))
    request.prefill()
    fill = request.draft_fill(PROMPT_TOKENS)
    assert runner.execute(StepPlan(0.0, draft_fills=(fill,))).failure is None
    request.draft_held = PROMPT_TOKENS
    request.assert_memory_is_known()
    return request


def test_a_draft_that_is_the_target_is_always_right_and_computes_each_token_once(
    dense: LlamaModel, make_context: MakeContext
) -> None:
    drafter = LlamaDrafter(make_context(dense))
    request = started(LlamaRunner(make_context(dense), drafter))
    while len(request.output) < OUTPUT_TOKENS:
        result = request.decode_with_draft(4)
        assert (result.drafted, result.accepted) == (4, 4)
        request.assert_memory_is_known()
    assert drafter.rows_evaluated == request.draft_held
    assert request.output[:OUTPUT_TOKENS] == plain_greedy(make_context(dense))


@pytest.mark.parametrize("quality", ["medium", "poor"])
def test_rejected_drafts_leave_both_memories(
    quality: str, dense: LlamaModel, make_context: MakeContext, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(f"tiny_{quality}_draft_path")
    drafter = LlamaDrafter(make_context(LlamaModel.load(path)))
    driven = started(LlamaRunner(make_context(dense), drafter))
    rejected = 0
    while len(driven.output) < OUTPUT_TOKENS:
        known, held, before = driven.history.size, driven.draft_held, drafter.rows_evaluated
        result = driven.decode_with_draft(4)
        assert drafter.rows_evaluated - before == known - held + result.drafted - 1
        assert driven.draft_held == min(known + result.drafted - 1, known + result.accepted)
        driven.assert_memory_is_known()
        rejected += result.drafted - result.accepted
    assert rejected > 0
    assert driven.output[:OUTPUT_TOKENS] == plain_greedy(make_context(dense))


def test_several_sequences_draft_in_one_batch_up_to_their_own_limits(
    dense: LlamaModel, make_context: MakeContext, count_decodes: CountDecodes
) -> None:
    drafter = LlamaDrafter(make_context(dense))
    runner = LlamaRunner(make_context(dense), drafter)
    requests = [started(runner, sequence_id, seed=sequence_id) for sequence_id in range(3)]
    decodes = count_decodes(drafter.context)
    asked = tuple(request.draft_request(limit) for request, limit in zip(requests, (3, 1, 5), strict=True))
    rows = tuple(request.decode_row() for request in requests)
    result = runner.execute(StepPlan(0.0, draft_requests=asked, decode=rows))
    assert [result.sequences[sequence_id].drafted for sequence_id in range(3)] == [3, 1, 5]
    assert decodes == [3, 2, 2, 1, 1]
    for sequence_id, request in enumerate(requests):
        request.commit(result)
        request.assert_memory_is_known()
        assert request.output == plain_greedy(make_context(dense), sequence_id)[: len(request.output)]


@pytest.fixture
def count_decodes(monkeypatch: pytest.MonkeyPatch) -> CountDecodes:
    """Lists the number of rows of every decode from now on."""

    def count(context: LlamaContext) -> list[int]:
        rows: list[int] = []
        decode = context.decode

        def counted(batch: Batch) -> None:
            rows.append(batch.rows)
            decode(batch)

        monkeypatch.setattr(context, "decode", counted)
        return rows

    return count


def test_a_long_catch_up_is_cut_into_batches(
    dense: LlamaModel, make_context: MakeContext, count_decodes: CountDecodes
) -> None:
    drafter = LlamaDrafter(make_context(dense, n_batch=16))
    runner = LlamaRunner(make_context(dense), drafter)
    requests = [DrivenRequest(runner, sequence_id, random_tokens(PROMPT_TOKENS, sequence_id)) for sequence_id in (0, 1)]
    for request in requests:
        request.prefill()
    decodes = count_decodes(drafter.context)
    proposals = [found.tokens for found in drafter.propose([request.draft_request(2) for request in requests])]
    assert decodes == [16, 16, 16, 16, 16, 2, 2]
    for sequence_id, proposal in enumerate(proposals):
        assert list(proposal) == plain_greedy(make_context(dense), sequence_id)[1:3]


def test_the_draft_of_a_fork_is_shared(dense: LlamaModel, make_context: MakeContext) -> None:
    drafter = LlamaDrafter(make_context(dense))
    runner = LlamaRunner(make_context(dense), drafter)
    started(runner)
    fork = DrivenRequest(runner, 5, random_tokens(PROMPT_TOKENS))
    fork.computed = PROMPT_TOKENS - 1
    operation = ForkSequence(0, 5, at(PROMPT_TOKENS - 1))
    fork.commit(runner.execute(StepPlan(0.0, operations=(operation,), prefill=(fork.prefill_rows(),))))
    fork.draft_held = PROMPT_TOKENS - 1
    before = drafter.rows_evaluated
    assert fork.decode_with_draft(3).accepted == 3
    assert drafter.rows_evaluated - before == 4
    fork.assert_memory_is_known()


def test_truncating_cuts_the_draft_where_it_is_longer(dense: LlamaModel, make_context: MakeContext) -> None:
    drafter = LlamaDrafter(make_context(dense))
    runner = LlamaRunner(make_context(dense), drafter)
    started(runner)
    for position, held in ((45, PROMPT_TOKENS), (30, 30)):
        runner.execute(StepPlan(0.0, operations=(TruncateSequence(0, at(position)),)))
        assert drafter.held(0) == held


def test_a_full_draft_memory_means_no_proposals_and_no_failure(dense: LlamaModel, make_context: MakeContext) -> None:
    drafter = LlamaDrafter(make_context(dense, n_ctx=256))
    runner = LlamaRunner(make_context(dense), drafter)
    request = started(runner)
    filler = DrivenRequest(runner, 1, random_tokens(256 - PROMPT_TOKENS - 2))
    plan = StepPlan(0.0, draft_fills=(filler.draft_fill(filler.history.size),))
    assert runner.execute(plan).draft_held == {1: filler.history.size}
    assert request.decode_with_draft(4).drafted == 2  # one cell for the pending token, one for the first proposal
    request.assert_memory_is_known()
    late = DraftFill(2, request.history.slice(0, 30), 0)
    step = runner.execute(StepPlan(0.0, draft_fills=(late,)))
    assert (step.failure, step.draft_held) == (None, {2: 0}), "what was not filled is not said to be"
    result = request.decode_with_draft(4)
    assert (result.drafted, len(result.tokens)) == (0, 1)
    request.assert_memory_is_known()
    drafter.clear(1)
    while len(request.output) < OUTPUT_TOKENS:
        assert request.decode_with_draft(4).accepted == 4
    assert request.output[:OUTPUT_TOKENS] == plain_greedy(make_context(dense))


def test_a_draft_memory_that_holds_less_than_thought_says_so(dense: LlamaModel, make_context: MakeContext) -> None:
    drafter = LlamaDrafter(make_context(dense))
    request = started(LlamaRunner(make_context(dense), drafter))
    drafter.truncate(0, 10)
    result = request.decode_with_draft(4)
    assert (result.drafted, request.draft_held) == (0, 10)


def test_a_draft_memory_that_holds_more_than_thought_is_cut(dense: LlamaModel, make_context: MakeContext) -> None:
    request = started(LlamaRunner(make_context(dense), LlamaDrafter(make_context(dense))))
    request.draft_held = 10
    assert request.decode_with_draft(4).accepted == 4
    request.assert_memory_is_known()


def test_drafting_ends_at_the_end_of_a_turn(dense: LlamaModel, make_context: MakeContext) -> None:
    turn_ends_after_two = plain_greedy(make_context(dense))[2]
    drafter = LlamaDrafter(make_context(dense))
    drafter._end_tokens = frozenset({turn_ends_after_two})
    request = started(LlamaRunner(make_context(dense), drafter))
    assert drafter.propose([request.draft_request(6)])[0].tokens[-1] == turn_ends_after_two
    assert drafter.held(0) == request.history.size + 1


def test_media_are_not_drafted(dense: LlamaModel, make_context: MakeContext) -> None:
    drafter = LlamaDrafter(make_context(dense))
    tokens = random_tokens(6)
    tokens[2] = -1
    assert drafter.propose([DraftRequest(0, tokens, 0, 4)]) == [Proposal()]
    assert drafter.rows_evaluated == 0


class WrongDrafter(LlamaDrafter):
    """Proposes the wrong tokens."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(tuple(token + 1 for token in right.tokens)) for right in super().propose(requests)]


def test_a_drafter_that_is_never_right_changes_nothing(dense: LlamaModel, make_context: MakeContext) -> None:
    request = started(LlamaRunner(make_context(dense), WrongDrafter(make_context(dense))))
    results = [request.decode_with_draft(3) for _ in range(8)]
    assert {(result.drafted, result.accepted) for result in results} == {(3, 0)}
    request.assert_memory_is_known()
    assert request.output == plain_greedy(make_context(dense))[:9]


def test_the_real_model_drafts_for_itself(smollm2: LlamaModel, make_context: MakeContext) -> None:
    prompt = smollm2.vocabulary.tokenize("The capital of France is", add_special=True, parse_special=False)
    drafter = LlamaDrafter(make_context(smollm2))
    request = DrivenRequest(LlamaRunner(make_context(smollm2), drafter), 0, prompt)
    request.prefill()
    accepted: Sequence[int] = [request.decode_with_draft(4).accepted for _ in range(4)]
    request.assert_memory_is_known()
    assert sum(accepted) >= 12
    text = b"".join(smollm2.vocabulary.piece(token) for token in request.output)
    assert text.startswith(b" Paris")
