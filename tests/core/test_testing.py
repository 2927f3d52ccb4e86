"""The fake memory and the fake runner mean what native ones mean."""

from __future__ import annotations

import pytest

from forerun.core.encoding import EncodeMedia
from forerun.core.history import TokenHistory
from forerun.core.memory import MemoryKind
from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment, SpeculativePosition
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.sampling import SamplingContext
from forerun.core.segment import SegmentHeader
from forerun.core.step import (
    ClearSequence,
    DecodeRow,
    DraftFill,
    DraftRequest,
    FailureKind,
    ForkSequence,
    MediaRows,
    PrefillRows,
    RestoreSegment,
    StepFailure,
    StepPlan,
    StoreSegment,
    TruncateSequence,
)
from forerun.testing import (
    FakeDrafter,
    FakeMemory,
    FakeMemoryError,
    FakeRunner,
    FakeStore,
    FakeVocabulary,
    ManualClock,
    media_codes,
    naive_answer,
)

IMAGE = PromptSegment.media("image", logical_tokens=4, native_positions=2)
VOCABULARY = FakeVocabulary()


def holding(*codes: int, capacity: int = 10) -> FakeMemory:
    memory = FakeMemory(capacity)
    memory.append(0, codes, 0)
    return memory


# --- memory ----------------------------------------------------------


def test_positions_are_consecutive() -> None:
    memory = holding(1, 2)
    for position in (0, 1, 3):
        with pytest.raises(FakeMemoryError, match="goes on at position 2"):
            memory.append(0, [3], position)
    memory.append(0, [3], 2)
    assert (memory.held(0), memory.next_position(0), memory.used) == (3, 3, 3)


def test_room_is_finite_and_a_refusal_writes_nothing() -> None:
    memory = holding(1, 2, capacity=3)
    with pytest.raises(FakeMemoryError, match="2 cells wanted, 1 of 3 free"):
        memory.append(0, [3, 4], 2)
    assert (memory.held(0), memory.used) == (2, 2)


def test_forks_share_cells_until_the_last_owner_is_gone() -> None:
    memory = holding(1, 2, 3, 4)
    memory.fork(0, 1, 3)
    assert (memory.held(1), memory.next_position(1), memory.used) == (3, 3, 4)
    memory.clear(0)
    assert (memory.held(0), memory.used) == (0, 3)
    memory.clear(1)
    assert memory.used == 0


def test_a_fork_into_what_is_not_empty_is_refused() -> None:
    memory = holding(1)
    memory.append(1, [1], 0)
    with pytest.raises(FakeMemoryError, match="not empty"):
        memory.fork(0, 1, 1)


def test_a_fork_past_the_end_holds_what_is_there() -> None:
    memory = holding(1, 2)
    memory.fork(0, 1, 9)
    assert memory.next_position(1) == 2
    memory.fork(5, 2, 3)
    assert memory.next_position(2) == 0


def test_equal_content_has_an_equal_digest_however_it_came_there() -> None:
    memory = holding(1, 2, 3)
    memory.fork(0, 1, 2)
    memory.append(1, [9], 2)
    memory.truncate(1, 2)
    memory.append(1, [3], 2)
    assert memory.digest(0) == memory.digest(1)
    memory.truncate(1, 2)
    assert memory.digest(0) != memory.digest(1)
    assert memory.digest(7) == 0


def test_a_digest_depends_on_every_cell_and_its_order() -> None:
    digests = {holding(*codes).digest(0) for codes in [(1, 2, 3), (0, 2, 3), (2, 1, 3), (1, 2), (1, 2, 3, 3)]}
    assert len(digests) == 5


def test_media_takes_a_cell_a_token_and_its_own_positions() -> None:
    memory = holding(1)
    memory.append_media(0, media_codes(IMAGE), MediaRows(0, IMAGE, 1, 0, 3))
    assert (memory.held(0), memory.next_position(0)) == (4, 2)
    memory.append_media(0, media_codes(IMAGE), MediaRows(0, IMAGE, 1, 3, 4))
    assert (memory.held(0), memory.next_position(0)) == (5, 3)
    memory.append(0, [2], 3)
    memory.truncate(0, 3)
    assert (memory.held(0), memory.next_position(0)) == (5, 3)


def test_a_truncation_past_the_end_does_nothing() -> None:
    memory = holding(1, 2)
    memory.truncate(0, 5)
    memory.truncate(3, 1)
    assert (memory.held(0), memory.next_position(0), memory.next_position(3)) == (2, 2, 0)


def test_a_recurrent_memory_refuses_truncation_but_not_clearing() -> None:
    memory = FakeMemory(10, kind=MemoryKind(has_state=True))
    memory.append(0, [1, 2], 0)
    memory.truncate(0, 2)
    with pytest.raises(FakeMemoryError, match="cannot be truncated"):
        memory.truncate(0, 1)
    memory.clear(0)
    assert memory.used == 0


@pytest.mark.parametrize("kind", [MemoryKind(), MemoryKind(window=5), MemoryKind(has_state=True)], ids=str)
def test_what_a_sequence_does_not_hold_cannot_be_copied(kind: MemoryKind) -> None:
    memory = FakeMemory(10, kind)
    memory.append(0, [1, 2, 3], 0)
    assert len(memory.export(0, 0, 3)) == 1 + 3
    for sequence_id, stop in ((0, 4), (1, 2)):
        with pytest.raises(FakeMemoryError):
            memory.export(sequence_id, 0, stop)


def test_a_memory_prints() -> None:
    assert repr(holding(1, 2)) == "FakeMemory(2 of 10 cells: {0: 2})"


# --- runner ----------------------------------------------------------


def sampling(prompt: PromptLayout) -> SamplingContext:
    return SamplingContext(SamplingParams(ignore_eos=True), 0, VOCABULARY.end_tokens, TokenHistory(prompt))


def prefill(prompt: PromptLayout, context: SamplingContext | None) -> PrefillRows:
    return PrefillRows(0, prompt.text_tokens, 0, context)


def segment(key: str, start: int, stop: int) -> SegmentHeader:
    content = PromptLayout.of_text([0] * (stop - start)).segments
    return SegmentHeader(key, "", "", PromptBoundary(start, start), PromptBoundary(stop, stop), content, draft_stop=0)


def restore(sequence_id: int, stored: SegmentHeader) -> RestoreSegment:
    start, stop = (SpeculativePosition(one.native_position, draft=0) for one in (stored.start, stored.stop))
    return RestoreSegment(sequence_id, stored.key, start, stop)


def answer_of(prompt: PromptLayout, max_tokens: int) -> list[int]:
    params = SamplingParams(ignore_eos=True, max_tokens=max_tokens)
    return list(naive_answer(prompt, params, VOCABULARY, n_ctx=100).tokens)


def test_prefill_and_decode_give_the_oracle_s_tokens() -> None:
    prompt, runner = PromptLayout.of_text([0, 1, 3]), FakeRunner(100)
    expected, context = answer_of(prompt, 5), sampling(prompt)
    first = runner.execute(StepPlan(0.0, prefill=(prefill(prompt, context),)))
    tokens = list(first.sequences[0].tokens)
    while len(tokens) < 5:
        context.history.append(tokens[-1])
        row = DecodeRow(0, tokens[-1], 2 + len(tokens), context, max_tokens=9)
        tokens += runner.execute(StepPlan(0.0, decode=(row,))).sequences[0].tokens
    assert tokens == expected
    assert runner.rows == runner.memory.held(0) == 7


def test_right_drafts_are_accepted_and_wrong_ones_leave_no_trace() -> None:
    prompt = PromptLayout.of_text([0, 1, 3])
    expected = answer_of(prompt, 5)
    wrong = (expected[3] + 1) % 5
    context, runner = sampling(prompt), FakeRunner(100)
    runner.execute(StepPlan(0.0, prefill=(prefill(prompt, context),)))
    context.history.append(expected[0])
    row = DecodeRow(0, expected[0], 3, context, max_tokens=9, drafts=(*expected[1:3], wrong, 0))
    step = runner.execute(StepPlan(0.0, decode=(row,)))
    result = step.sequences[0]
    assert list(result.tokens) == expected[1:4]
    assert (result.drafted, result.accepted, step.draft_held) == (4, 2, {})
    assert runner.memory.next_position(0) == 3 + len(result.tokens)


def test_a_perfect_draft_model_is_always_right_and_keeps_what_was_accepted() -> None:
    prompt = PromptLayout.of_text([0, 1, 3])
    expected = answer_of(prompt, 5)
    context, drafter = sampling(prompt), FakeDrafter(100, VOCABULARY.size, quality=1.0)
    runner = FakeRunner(100, drafter=drafter)
    runner.execute(StepPlan(0.0, prefill=(prefill(prompt, context),)))
    context.history.append(expected[0])
    plan = StepPlan(
        0.0,
        draft_fills=(DraftFill(0, prompt.text_tokens[:2], 0),),
        draft_requests=(DraftRequest(0, context.history.tokens, held=2, limit=3),),
        decode=(DecodeRow(0, expected[0], 3, context, max_tokens=9),),
    )
    step = runner.execute(plan)
    result = step.sequences[0]
    assert (list(result.tokens), result.accepted) == (expected[1:5], 3)
    assert step.draft_held == {0: drafter.memory.held(0)} == {0: 6}
    assert drafter.rows == 6


def test_operations_reach_both_memories_at_their_own_positions() -> None:
    drafter = FakeDrafter(100, VOCABULARY.size)
    runner = FakeRunner(100, drafter=drafter)
    prompt = PromptLayout.of_text([0, 1])
    assert IMAGE.media_span is not None
    media = MediaRows(0, IMAGE, 2, 0, IMAGE.logical_tokens)
    runner.execute(StepPlan(0.0, media=(EncodeMedia(IMAGE.media_span),)))
    runner.execute(StepPlan(0.0, prefill=(prefill(prompt, None), media)))
    drafter.evaluate(0, [0] * 6, 0)
    runner.execute(StepPlan(0.0, operations=(ForkSequence(0, 1, SpeculativePosition(target=4, draft=6)),)))
    assert (runner.memory.next_position(1), drafter.memory.next_position(1)) == (4, 6)
    cut = TruncateSequence(0, SpeculativePosition(target=2, draft=2))
    runner.execute(StepPlan(0.0, operations=(cut, ClearSequence(1))))
    assert (runner.memory.held(0), drafter.memory.held(0)) == (2, 2)
    assert runner.memory.used == drafter.memory.used == 2


def test_a_fault_leaves_garbage_behind_and_the_operations_applied() -> None:
    failure = StepFailure(FailureKind.ABORTED, "on demand")
    runner = FakeRunner(100, faults=lambda plan: failure if plan.prefill else None)
    prompt = PromptLayout.of_text([0, 1])
    runner.memory.append(5, [1], 0)
    plan = StepPlan(0.0, operations=(ClearSequence(5),), prefill=(prefill(prompt, sampling(prompt)),))
    assert runner.execute(plan).failure == failure
    assert (runner.memory.held(0), runner.memory.held(5)) == (1, 0)


def test_operations_after_one_that_failed_are_applied_too() -> None:
    runner = FakeRunner(100, kind=MemoryKind(has_state=True))
    runner.memory.append(0, [1, 1], 0)
    runner.memory.append(1, [1, 1], 0)
    cut = TruncateSequence(0, SpeculativePosition(target=1, draft=1))
    result = runner.execute(StepPlan(0.0, operations=(cut, ClearSequence(1))))
    assert result.failure == StepFailure(FailureKind.FAILED, "sequence 0 cannot be truncated")
    assert (runner.memory.held(0), runner.memory.held(1)) == (2, 0)


def test_what_goes_on_from_a_stored_run_that_was_lost_is_neither_done_nor_blamed() -> None:
    decode = StepFailure(FailureKind.NO_ROOM, "does not begin")
    runner = FakeRunner(100, store=FakeStore(), faults=lambda _: decode)
    runner.memory.append(0, [1, 2, 3, 4], 0)
    first, second = segment("first", 0, 2), segment("second", 2, 4)
    runner.execute(StepPlan(0.0, operations=(StoreSegment(0, second), ClearSequence(0))))
    copy = StoreSegment(1, segment("copy", 0, 4))
    result = runner.execute(StepPlan(0.0, operations=(restore(1, first), restore(1, second), copy)))
    assert result.failure is not None
    assert "segment first cannot be restored" in result.failure.message
    assert result.unrestorable == ("first",)
    assert result.kept == {}
    assert result.stored == {"copy": 0}
    assert runner.memory.used == 0


def test_what_memory_refuses_comes_back_as_a_failure() -> None:
    prompt = PromptLayout.of_text([0, 1, 3])
    result = FakeRunner(2).execute(StepPlan(0.0, prefill=(prefill(prompt, sampling(prompt)),)))
    assert result.failure == StepFailure(FailureKind.FAILED, "3 cells wanted, 2 of 2 free")
    assert not result.sequences


# --- oracle ----------------------------------------------------------


def test_the_oracle_ends_at_the_limit_and_no_later_than_the_context() -> None:
    prompt, params = PromptLayout.of_text([0, 1]), SamplingParams(ignore_eos=True)
    answer = naive_answer(prompt, params, VOCABULARY, n_ctx=6)
    assert (len(answer.tokens), answer.finish_reason) == (5, FinishReason.LENGTH)


def test_the_oracle_ends_before_a_stop_string() -> None:
    prompt = PromptLayout.of_text([0, 1])
    free = naive_answer(prompt, SamplingParams(ignore_eos=True, max_tokens=30), VOCABULARY, n_ctx=100)
    stop = free.text[2:4]
    stopped = naive_answer(prompt, SamplingParams(ignore_eos=True, stop=(stop,)), VOCABULARY, n_ctx=100)
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.tokens == free.tokens[: len(stopped.tokens)]


def test_a_clock_moves_when_told() -> None:
    clock = ManualClock()
    clock.advance(1.5)
    clock.advance(0.25)
    assert clock() == 1.75
