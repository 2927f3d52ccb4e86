"""What a sequence holds that a later prompt can reuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.prefix import PromptCheckpoint, PromptCheckpointState, ReusablePrefix, leave_one_to_evaluate
from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment
from tests.core.strategies import MEDIA, boundaries_of, layouts, prompts, segment_lists, units_of

IMAGE = PromptSegment.media("image-a", logical_tokens=576, native_positions=1)
TEXT = PromptLayout.of_text([1, 2, 3, 4])
ENDS_WITH_IMAGE = PromptLayout([PromptSegment.text([1, 2]), IMAGE])


def checkpoint(logical: int, native: int | None = None) -> PromptCheckpoint:
    state = PromptCheckpointState.speculative(f"at {logical}".encode())
    return PromptCheckpoint(state, PromptBoundary(logical, logical if native is None else native))


def test_a_full_hit_steps_back_one_token() -> None:
    assert ReusablePrefix(TEXT).reusable_by(TEXT) == PromptBoundary(3, 3)


def test_a_prompt_that_is_shorter_than_what_is_held_steps_back_too() -> None:
    assert ReusablePrefix(TEXT).reusable_by(PromptLayout.of_text([1, 2])) == PromptBoundary(1, 1)


def test_a_prompt_that_goes_on_reuses_everything() -> None:
    assert ReusablePrefix(TEXT).reusable_by(PromptLayout.of_text([1, 2, 3, 4, 5])) == PromptBoundary(4, 4)


def test_a_full_hit_that_ends_with_media_steps_back_before_it() -> None:
    assert ReusablePrefix(ENDS_WITH_IMAGE).reusable_by(ENDS_WITH_IMAGE) == PromptBoundary(2, 2)


@pytest.mark.parametrize("layout", [PromptLayout.of_text([7]), PromptLayout([IMAGE]), PromptLayout([MEDIA[-1]])])
def test_a_full_hit_on_one_unit_reuses_nothing(layout: PromptLayout) -> None:
    assert ReusablePrefix(layout).reusable_by(layout) == PromptBoundary.START


@given(prompts, layouts)
def test_something_is_left_to_evaluate_and_no_more_than_needed(prompt: PromptLayout, held: PromptLayout) -> None:
    shared = held.common_prefix(prompt)
    boundary = ReusablePrefix(held).reusable_by(prompt)
    before_last = boundaries_of(units_of(prompt.segments))[-2]
    assert boundary == (before_last if shared == prompt.end else shared)
    assert prompt.boundary_at(boundary.logical_tokens) == boundary


def test_an_empty_prompt_has_nothing_to_step_back_over() -> None:
    assert leave_one_to_evaluate(PromptLayout(), PromptBoundary.START) == PromptBoundary.START


def test_checkpoints_are_kept_in_order() -> None:
    prefix = ReusablePrefix(TEXT, [checkpoint(3), checkpoint(1), checkpoint(4)])
    assert [c.boundary.logical_tokens for c in prefix.checkpoints] == [1, 3, 4]


@given(segment_lists, st.data())
def test_the_deepest_checkpoint_at_or_before_a_boundary_is_found(
    segments: list[PromptSegment], data: st.DataObject
) -> None:
    layout, legal = PromptLayout(segments), boundaries_of(units_of(segments))
    taken = data.draw(st.lists(st.sampled_from(legal), unique=True))
    wanted = data.draw(st.sampled_from(legal))
    prefix = ReusablePrefix(layout, [checkpoint(b.logical_tokens, b.native_position) for b in taken])
    found = prefix.checkpoint_at_or_before(wanted)
    usable = [b for b in taken if b.logical_tokens <= wanted.logical_tokens]
    assert (found.boundary if found else None) == max(usable, key=lambda b: b.logical_tokens, default=None)


@pytest.mark.parametrize("wrong", [checkpoint(3), checkpoint(2, 1), checkpoint(579, 4), checkpoint(578, 578)])
def test_a_checkpoint_that_is_no_boundary_of_the_layout_is_refused(wrong: PromptCheckpoint) -> None:
    with pytest.raises(ValueError, match="no boundary"):
        ReusablePrefix(ENDS_WITH_IMAGE, [wrong])


def test_a_state_of_target_alone_is_never_taken_for_a_speculative_one() -> None:
    target, speculative = PromptCheckpointState.target(b"x"), PromptCheckpointState.speculative(b"x")
    assert target != speculative
    assert (target.is_speculative, speculative.is_speculative) == (False, True)
    assert (repr(target), repr(speculative)) == ("Target(1 bytes)", "Speculative(1 bytes)")


def test_a_prefix_prints() -> None:
    assert repr(ReusablePrefix(TEXT, [checkpoint(2)])) == "ReusablePrefix(4 tokens, 1 checkpoints)"
