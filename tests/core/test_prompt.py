"""Coordinates of a prompt, against a model that counts unit by unit."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.core import prompt
from forerun.core.prompt import (
    INT32_MAX,
    PromptBoundary,
    PromptLayout,
    PromptSegment,
    SpeculativePosition,
    as_tokens,
    shared_length,
)
from tests.core.strategies import MEDIA, boundaries_of, layouts, segment_lists, shared_units, token_ids, units_of

IMAGE = PromptSegment.media(identity="image-a", logical_tokens=576, native_positions=1)
OTHER_IMAGE = PromptSegment.media(identity="image-b", logical_tokens=576, native_positions=1)
TILES = PromptSegment.media(identity="tiles", logical_tokens=512, native_positions=32)


def layout_of(*parts: list[int] | PromptSegment) -> PromptLayout:
    return PromptLayout([PromptSegment.text(part) if isinstance(part, list) else part for part in parts])


# --- worked cases ----------------------------------------------------------


def test_prompts_share_an_image_and_the_text_before_their_first_difference() -> None:
    shared = layout_of([1, 2], IMAGE, [3, 4]).common_prefix(layout_of([1, 2], IMAGE, [3, 9]))
    assert shared == PromptBoundary(579, 4)


def test_another_image_ends_the_shared_prefix_before_it() -> None:
    shared = layout_of([1, 2], IMAGE, [3, 4]).common_prefix(layout_of([1, 2], OTHER_IMAGE, [3, 4]))
    assert shared == PromptBoundary(2, 2)


@pytest.mark.parametrize("n", [3, 32, 513])
def test_inside_a_media_span_there_is_no_boundary(n: int) -> None:
    assert layout_of([1, 2], TILES, [3, 4]).boundary_at(n) is None


@pytest.mark.parametrize(
    ("n", "boundary"),
    [(0, (0, 0)), (2, (2, 2)), (3, (514, 34)), (128, (514, 34)), (514, (514, 34)), (515, (515, 35)), (516, (516, 36))],
)
def test_the_next_boundary_inside_media_is_its_end(n: int, boundary: tuple[int, int]) -> None:
    assert layout_of([1, 2], TILES, [3, 4]).boundary_at_or_after(n) == PromptBoundary(*boundary)


@pytest.mark.parametrize(("n", "boundary"), [(2, (2, 2)), (3, (2, 2)), (513, (2, 2)), (514, (514, 34))])
def test_the_last_boundary_inside_media_is_its_start(n: int, boundary: tuple[int, int]) -> None:
    assert layout_of([1, 2], TILES, [3, 4]).boundary_at_or_before(n) == PromptBoundary(*boundary)


@pytest.mark.parametrize("n", [-1, 517])
def test_outside_the_prompt_there_is_no_boundary(n: int) -> None:
    layout = layout_of([1, 2], TILES, [3, 4])
    assert layout.boundary_at(n) is layout.boundary_at_or_after(n) is layout.boundary_at_or_before(n) is None


def test_the_start_and_end_of_media_that_opens_a_prompt_are_boundaries() -> None:
    layout = layout_of(TILES, [1])
    assert layout.boundary_at(0) == PromptBoundary.START
    assert layout.boundary_at(512) == PromptBoundary(512, 32)
    assert layout.media_at(0) == TILES
    assert layout.media_at(512) is None


def test_a_boundary_says_where_each_memory_is_cut() -> None:
    assert PromptBoundary(4096, 137).speculative_position() == SpeculativePosition(target=137, draft=4096)


@pytest.mark.parametrize("boundary", [PromptBoundary(INT32_MAX + 1, 5), PromptBoundary(5, INT32_MAX + 1)])
def test_a_coordinate_that_leaves_int32_has_no_position(boundary: PromptBoundary) -> None:
    assert boundary.speculative_position() is None


def test_the_largest_int32_is_still_a_position() -> None:
    boundary = PromptBoundary(INT32_MAX, INT32_MAX)
    assert boundary.speculative_position() == SpeculativePosition(INT32_MAX, INT32_MAX)


def test_text_moves_both_coordinates() -> None:
    assert PromptBoundary(578, 3).advance(2) == PromptBoundary(580, 5)


def test_the_example_of_the_domain_holds() -> None:
    incoming = PromptLayout([PromptSegment.text([1, 2]), IMAGE, PromptSegment.text([3])])
    cached = PromptLayout([PromptSegment.text([1, 2]), IMAGE, PromptSegment.text([9])])
    shared = cached.common_prefix(incoming)
    assert shared == PromptBoundary(logical_tokens=578, native_position=3)
    assert shared.speculative_position() == SpeculativePosition(target=3, draft=578)


def test_an_empty_prompt_has_one_boundary() -> None:
    layout = PromptLayout()
    assert layout.boundary_at(0) == layout.boundary_at_or_after(0) == layout.end == PromptBoundary.START
    assert layout.text_tokens.size == layout.text_tokens_at(0).size == 0
    assert layout.common_prefix(layout_of([1])) == PromptBoundary.START


# --- against the naive model ----------------------------------------------------------


@given(segment_lists)
def test_boundaries_are_those_between_units(segments: list[PromptSegment]) -> None:
    layout, legal = PromptLayout(segments), boundaries_of(units_of(segments))
    assert layout.end == legal[-1]
    for n in range(-2, layout.logical_tokens + 3):
        inside = 0 <= n <= layout.logical_tokens
        assert layout.boundary_at(n) == next((b for b in legal if b.logical_tokens == n), None)
        after = next((b for b in legal if b.logical_tokens >= n), None) if inside else None
        before = next((b for b in reversed(legal) if b.logical_tokens <= n), None) if inside else None
        assert layout.boundary_at_or_after(n) == after
        assert layout.boundary_at_or_before(n) == before


@given(segment_lists)
def test_text_and_media_are_found_where_they_start(segments: list[PromptSegment]) -> None:
    layout, units = PromptLayout(segments), units_of(segments)
    legal = boundaries_of(units)
    for index, boundary in enumerate(legal):
        run = [*units[index:], None]
        stop = next(i for i, unit in enumerate(run) if not isinstance(unit, int))
        media = layout.media_at(boundary.logical_tokens)
        assert layout.text_tokens_at(boundary.logical_tokens).tolist() == run[:stop]
        assert (media.media_span if media else None) == (run[0] if not isinstance(run[0], int) else None)
    assert layout.text_tokens.tolist() == [unit for unit in units if isinstance(unit, int)]


@given(segment_lists, segment_lists)
def test_the_common_prefix_is_what_unit_by_unit_comparison_finds(
    a: list[PromptSegment], b: list[PromptSegment]
) -> None:
    mine, theirs = PromptLayout(a), PromptLayout(b)
    expected = boundaries_of(units_of(a))[shared_units(units_of(a), units_of(b))]
    assert mine.common_prefix(theirs) == theirs.common_prefix(mine) == expected
    assert mine.prefix(expected) == theirs.prefix(expected)
    assert (mine == theirs) == (units_of(a) == units_of(b))


@given(segment_lists, st.data())
def test_segmentation_of_text_changes_nothing(segments: list[PromptSegment], data: st.DataObject) -> None:
    pieces: list[PromptSegment] = []
    for segment in segments:
        if segment.is_media:
            pieces.append(segment)
            continue
        cut = data.draw(st.integers(0, segment.logical_tokens))
        pieces += [PromptSegment.text(segment.tokens[:cut]), PromptSegment.text(segment.tokens[cut:].tolist())]
    assert PromptLayout(pieces) == PromptLayout(segments)
    assert hash(PromptLayout(pieces)) == hash(PromptLayout(segments))
    assert [s.is_media for s in PromptLayout(pieces).segments] == [s.is_media for s in PromptLayout(segments).segments]


@given(layouts)
def test_a_layout_is_normalised(layout: PromptLayout) -> None:
    assert all(segment.logical_tokens for segment in layout.segments)
    kinds = [segment.is_media for segment in layout.segments]
    assert not any(not a and not b for a, b in itertools.pairwise(kinds))


@given(segment_lists, st.data())
def test_a_prompt_is_the_prefix_and_the_rest_at_any_boundary(
    segments: list[PromptSegment], data: st.DataObject
) -> None:
    layout = PromptLayout(segments)
    boundary = data.draw(st.sampled_from(boundaries_of(units_of(segments))))
    prefix = layout.prefix(boundary)
    rest = layout.slice_segments(boundary.logical_tokens, layout.logical_tokens)
    assert prefix.end == boundary
    assert prefix.extended(rest) == layout
    assert layout.common_prefix(prefix) == boundary


@pytest.mark.parametrize("boundary", [PromptBoundary(3, 3), PromptBoundary(2, 1), PromptBoundary(517, 37)])
def test_a_prefix_up_to_what_is_no_boundary_is_refused(boundary: PromptBoundary) -> None:
    with pytest.raises(ValueError, match="no boundary"):
        layout_of([1, 2], TILES, [3, 4]).prefix(boundary)


def test_a_cut_inside_media_is_refused() -> None:
    with pytest.raises(ValueError, match="cut inside"):
        layout_of([1, 2], TILES).slice_segments(0, 3)


@given(st.lists(token_ids, max_size=300), st.lists(token_ids, max_size=300), st.integers(0, 300))
def test_shared_length_is_that_of_a_loop(a: list[int], b: list[int], common: int) -> None:
    b = a[:common] + b
    assert shared_length(as_tokens(a), as_tokens(b)) == shared_units([*a], [*b])


CHUNK_ENDS = [prompt._FIRST_COMPARE + count * prompt._COMPARE for count in range(3)]


@pytest.mark.parametrize("at", [0, 99_998, 99_999, *(end + off for end in CHUNK_ENDS for off in (-2, -1, 0, 1))])
def test_a_difference_is_found_wherever_comparison_chunks_end(at: int) -> None:
    a = np.zeros(100_000, np.int32)
    b = a.copy()
    b[at] = 1
    assert PromptLayout.of_text(a).common_prefix(PromptLayout.of_text(b)) == PromptBoundary(at, at)


def test_comparing_hundred_thousand_tokens_is_no_loop_per_token() -> None:
    a, b = (PromptLayout.of_text(np.zeros(100_000, np.int32)) for _ in range(2))
    started = time.perf_counter()
    for _ in range(10):
        a.common_prefix(b)
    assert time.perf_counter() - started < 0.1


# --- values ----------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_writing_to_the_callers_array_changes_no_prompt(dtype: type) -> None:
    array: NDArray[np.generic] = np.array([1, 2, 3], dtype)
    layout = PromptLayout.of_text(array)
    array[:] = 7
    assert layout.text_tokens.tolist() == [1, 2, 3]


def test_writing_under_a_read_only_view_changes_no_prompt() -> None:
    array = np.array([1, 2, 3], np.int32)
    view = array[:]
    view.flags.writeable = False
    layout = PromptLayout.of_text(view)
    array[:] = 7
    assert layout.text_tokens.tolist() == [1, 2, 3]


@given(layouts)
def test_what_a_layout_hands_out_cannot_be_written(layout: PromptLayout) -> None:
    handed_out = [layout.text_tokens, layout.prefix(layout.end).text_tokens]
    handed_out += [segment.tokens for segment in layout.segments if not segment.is_media]
    handed_out += [layout.text_tokens_at(n) for n in range(layout.logical_tokens)]
    for tokens in handed_out:
        if tokens.size:
            with pytest.raises(ValueError, match="read-only"):
                tokens[0] = 7


@pytest.mark.parametrize("b", MEDIA[1:])
def test_media_that_differs_in_anything_is_other_media(b: PromptSegment) -> None:
    assert MEDIA[0] != b
    assert PromptLayout([MEDIA[0]]).common_prefix(PromptLayout([b])) == PromptBoundary.START


def test_prompts_and_segments_are_never_equal_to_other_things() -> None:
    assert layout_of([1]) != [1]
    assert PromptSegment.text([1]) != 1


def test_values_print() -> None:
    assert repr(layout_of([1, 2], IMAGE)) == (
        "PromptLayout(578 tokens, 3 positions: text(2) | media('image-a', 576 tokens, 1 positions))"
    )


# --- refused input ----------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [[-1], [2**31], [2**63], [2**64], [1.5], [1.0], ["1"], [None], [True, False], "12", b"12", [[1, 2]], [[1], [2, 3]]],
)
def test_what_is_no_flat_row_of_token_ids_is_refused(tokens: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        PromptSegment.text(tokens)


@pytest.mark.parametrize(
    "array", [np.array([-1], np.int32), np.array([1.5]), np.zeros((2, 2), np.int32), np.array(3, np.int32)]
)
def test_arrays_that_are_no_flat_row_of_token_ids_are_refused(array: Any) -> None:
    with pytest.raises(ValueError, match="token ids"):
        PromptSegment.text(array)


def test_token_ids_may_come_from_any_iterable() -> None:
    expected = PromptSegment.text([0, 1, INT32_MAX])
    assert PromptSegment.text(iter([0, 1, INT32_MAX])) == expected
    assert PromptSegment.text((0, 1, INT32_MAX)) == expected
    assert PromptSegment.text(np.array([0, 1, INT32_MAX], ">i8")) == expected
    assert PromptSegment.text([]).logical_tokens == 0


@pytest.mark.parametrize(("identity", "tokens", "positions"), [("", 1, 1), ("a", 0, 1), ("a", 1, 0), ("a", -1, 1)])
def test_media_without_identity_or_extent_is_refused(identity: str, tokens: int, positions: int) -> None:
    with pytest.raises(ValueError, match="media span"):
        PromptSegment.media(identity, tokens, positions)


@pytest.mark.parametrize("coordinates", [(-1, 0), (0, -1)])
def test_negative_boundaries_are_refused(coordinates: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not negative"):
        PromptBoundary(*coordinates)


def test_going_back_past_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        PromptBoundary(3, 1).advance(-2)
