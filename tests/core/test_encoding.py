"""Media spans are encoded beside the steps: who waits for that, who does not, and what is forgotten when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.encoding import EncodeMedia, ForgetMedia
from forerun.core.memory import MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import FinishReason, SamplingParams
from forerun.core.step import MediaRows, tokens_of
from forerun.testing import FakeEncoder, FakeRunner
from tests.core.harness import VOCABULARY, Harness

IMAGE = PromptSegment.media("image", logical_tokens=12, native_positions=4)
OTHER = PromptSegment.media("other", logical_tokens=12, native_positions=4)
N_CTX = 96


def harness(delay: int = 0, fails: Callable[[str], bool] = lambda _: False, **config: Any) -> Harness:
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "prefill_rows_beside_decode": 5, **config}
    runner = FakeRunner(N_CTX, VOCABULARY.size, encoder=FakeEncoder(delay, fails))
    return Harness(SchedulerConfig(n_ctx=N_CTX, **given), runner)


def prompt(*parts: list[int] | PromptSegment) -> PromptLayout:
    return PromptLayout([part if isinstance(part, PromptSegment) else PromptSegment.text(part) for part in parts])


def encoded(one: Harness) -> list[str]:
    return one.runner.encoder.encoded


@pytest.mark.parametrize("splits_media", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 7])
def test_an_answer_does_not_depend_on_how_long_encoding_takes_or_how_a_span_is_cut(
    delay: int,
    splits_media: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    one = harness(delay, splits_media=splits_media)
    one.add("a", prompt([1, 2, 3], IMAGE, [4], OTHER, [5]))
    one.add("b", prompt(IMAGE))
    one.add("c", [1, 2, 3, 4])
    one.run()
    one.assert_all_right()
    assert not one.runner.encoder.kept


def test_others_decode_while_a_span_is_encoded_and_its_own_text_goes_on() -> None:
    one = harness(delay=20)
    one.add("talks", [7, 8], SamplingParams(max_tokens=16))
    one.step()
    one.add("shows", prompt([1, 2, 3], IMAGE, [4]))
    one.run(lambda: bool(one.deltas["talks"]) and one.deltas["talks"][-1].finish_reason is not None)
    assert not one.deltas["shows"]
    assert len(one.plans) <= 17, "no step went by without a token"
    assert sum(tokens_of(rows) for plan in one.plans for rows in plan.prefill) == 2 + 3
    one.run()
    one.assert_all_right()


def test_nobody_spins_while_the_only_thing_to_do_is_being_encoded() -> None:
    one = harness(delay=3)
    one.add("shows", prompt(IMAGE, [4]))
    plan, _ = one.step()
    assert [type(operation) for operation in plan.media] == [EncodeMedia]
    assert plan.waits_for_media
    one.run()
    assert not any(plan.waits_for_media for plan in one.plans if plan.prefill or plan.decode)


def test_a_span_is_evaluated_within_the_step_s_rows_where_it_may_be_cut() -> None:
    one = harness(splits_media=True)
    one.add("talks", [7, 8], SamplingParams(max_tokens=16))
    one.step()
    one.add("shows", prompt([1], IMAGE, [4]))
    one.run()
    parts = [rows for plan in one.plans for rows in plan.prefill if isinstance(rows, MediaRows)]
    assert max(map(tokens_of, parts)) <= 5
    assert sum(map(tokens_of, parts)) == IMAGE.logical_tokens
    one.assert_all_right()


def test_requests_that_want_the_same_span_have_it_encoded_once() -> None:
    one = harness(delay=2)
    for name in ("a", "b", "c"):
        one.add(name, prompt([ord(name) % 20], IMAGE, [4]))
    one.run()
    one.assert_all_right()
    assert encoded(one) == ["image"]


def test_a_span_in_memory_is_not_encoded_again() -> None:
    one = harness()
    one.add("first", prompt([1, 2], IMAGE, [4, 5]))
    one.run()
    one.add("again", prompt([1, 2], IMAGE, [4, 6]))
    one.run()
    one.assert_all_right()
    assert encoded(one) == ["image"]
    assert one.usage("again").cached_tokens == 2 + 12 + 1


def test_of_each_running_request_only_the_next_span_is_kept_ready() -> None:
    one = harness()
    one.add("album", prompt(IMAGE, [1], OTHER, [2], IMAGE, [3]))
    most = 0
    while one.scheduler.has_work:
        one.step()
        most = max(most, len(one.runner.encoder.kept))
    one.assert_all_right()
    assert most == 1
    assert encoded(one) == ["image", "other", "image"]


def test_who_is_cancelled_while_its_span_is_encoded_leaves_nothing_behind() -> None:
    one = harness(delay=5)
    one.add("gone", prompt([1, 2], IMAGE, [4]))
    one.step()
    one.abort("gone")
    one.run()
    assert IMAGE.media_span is not None
    assert one.plans[-1].media == (ForgetMedia(IMAGE.media_span),)
    assert not one.runner.encoder.kept
    assert encoded(one) == []


def test_who_is_cancelled_between_two_parts_of_a_span_leaves_what_was_whole() -> None:
    one = harness(splits_media=True, max_num_batched_tokens=4)
    one.add("gone", prompt([1, 2, 3], IMAGE, [4]))
    one.run(lambda: any(isinstance(rows, MediaRows) for plan in one.plans for rows in plan.prefill))
    one.abort("gone")
    one.scheduler.check_integrity()
    one.add("next", prompt([1, 2, 3], OTHER, [4]))
    one.run()
    assert one.usage("next").cached_tokens == 3
    assert one.answer("next") == one.expected("next")


def test_a_span_that_cannot_be_encoded_ends_those_who_want_it_and_nobody_else() -> None:
    one = harness(delay=1, fails=lambda identity: identity == "other")
    one.add("bad", prompt([1], OTHER, [4]))
    one.add("worse", prompt(OTHER))
    one.add("good", prompt([1], IMAGE, [4]))
    one.add("text", [1, 2, 3])
    one.run()
    for name in ("bad", "worse"):
        last = one.deltas[name][-1]
        assert last.finish_reason is FinishReason.ERROR
        assert str(last.error) == "media cannot be encoded: on demand"
    for name in ("good", "text"):
        assert one.answer(name) == one.expected(name)
    assert not one.runner.encoder.kept


def test_whose_reader_is_behind_is_told_that_its_span_cannot_be_encoded_when_it_has_caught_up() -> None:
    one = harness(delay=1, fails=lambda identity: identity == "other")
    one.add("bad", prompt([1], OTHER, [4]))
    one.add("text", [1, 2, 3])
    one.step()
    one.scheduler.pause("bad")
    one.run()
    assert one.answer("text") == one.expected("text")
    assert not one.deltas["bad"]
    one.scheduler.resume("bad")
    one.run()
    assert str(one.deltas["bad"][-1].error) == "media cannot be encoded: on demand"
    assert not one.runner.encoder.kept


def test_a_memory_with_a_state_evaluates_no_span_in_parts() -> None:
    with pytest.raises(ValueError, match="splits_media"):
        harness(splits_media=True, memory=MemoryKind(has_state=True))


def test_a_full_memory_parks_nobody_for_what_is_only_being_encoded() -> None:
    one = harness(delay=30)
    one.add("a", prompt(IMAGE, [1]))
    one.add("b", prompt(OTHER, [1]))
    for _ in range(20):
        one.step()
    assert one.scheduler.stats.preemptions == 0
    one.run()
    one.assert_all_right()
