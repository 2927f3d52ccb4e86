"""What can be restored of stored segments, and what is stranded."""

from __future__ import annotations

import random

from forerun.cache.chains import SegmentChains
from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment
from forerun.core.segment import SegmentHeader, StoredSegment
from tests.cache.support import header_of, text_header

A = text_header(range(10))
A1 = text_header(range(100, 110), A)
A2 = header_of([PromptSegment.text(range(200, 210))], PromptBoundary(7, 7), parent=A.key)
A11 = text_header(range(110, 115), A1)
B = text_header([9, 9])


def stored(*headers: SegmentHeader) -> list[StoredSegment]:
    return [StoredSegment(header, 100, 200, float(age)) for age, header in enumerate(headers)]


def keys(segments: list[StoredSegment]) -> set[str]:
    return {segment.header.key for segment in segments}


def test_conversations_are_the_rows_to_segments_that_nothing_goes_on_from() -> None:
    chains = SegmentChains(stored(A11, B, A1, A, A2))
    assert chains.stranded == []
    rows = [[segment.header for segment in one.segments] for one in chains.conversations()]
    assert rows == [[A, A2], [A, A1, A11], [B]]
    assert [one.tokens for one in chains.conversations()] == [17, 25, 2]
    assert [one.nbytes for one in chains.conversations()] == [200, 300, 100]


def test_a_conversation_knows_all_of_its_tokens() -> None:
    forked, straight, _ = SegmentChains(stored(A11, B, A1, A, A2)).conversations()
    assert forked.layout == PromptLayout.of_text([*range(7), *range(200, 210)])
    assert straight.layout == PromptLayout.of_text([*range(10), *range(100, 115)])


def test_what_goes_on_from_a_missing_segment_is_stranded_with_all_behind_it() -> None:
    chains = SegmentChains(stored(A, A11, B))
    assert keys(chains.whole) == {A.key, B.key}
    assert keys(chains.stranded) == {A11.key}
    assert keys(SegmentChains(stored(A1, A11, A2, B)).stranded) == {A1.key, A11.key, A2.key}


def test_a_child_that_starts_where_its_parent_cannot_be_cut_is_stranded() -> None:
    image = header_of([PromptSegment.text([1, 2]), PromptSegment.media("image", 576, 1)])
    text = [PromptSegment.text([3])]
    right = [header_of(text, start, parent=image.key) for start in (PromptBoundary(1, 1), PromptBoundary(578, 3, 576))]
    wrong = [
        header_of(text, start, parent=image.key)
        for start in (PromptBoundary(579, 4), PromptBoundary(100, 3), PromptBoundary(578, 3), PromptBoundary(0, 3))
    ]
    foreign = header_of(text, image.stop, parent=image.key, scope="ab" * 16)
    unrooted = header_of(text, PromptBoundary(5, 5))
    chains = SegmentChains(stored(image, *right, *wrong, foreign, unrooted))
    assert keys(chains.stranded) == {one.key for one in (*wrong, foreign, unrooted)}
    assert {one.tokens for one in chains.conversations()} == {2, 579}


def test_rows_of_any_length_are_walked() -> None:
    row = [A]
    for _ in range(3000):
        row.append(text_header([1], row[-1]))
    segments = stored(*row)
    random.Random(0).shuffle(segments)
    (conversation,) = SegmentChains(segments).conversations()
    assert conversation.tokens == 3010
    assert conversation.layout.logical_tokens == 3010
