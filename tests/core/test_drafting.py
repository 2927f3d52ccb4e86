"""Drafters without a model, and how rows are shared among those who draft."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.drafting import GuardedDrafter, NgramDrafter, checked_forced
from forerun.core.history import MEDIA_TOKEN
from forerun.core.prompt import Tokens
from forerun.core.step import DraftRequest, Proposal

histories = st.lists(st.sampled_from([0, 1, 2, MEDIA_TOKEN]), max_size=25)


def propose(drafter: NgramDrafter, tokens: list[int], limit: int = 8) -> tuple[int, ...]:
    (proposal,) = drafter.propose([DraftRequest(0, np.array(tokens, np.int32), held=0, limit=limit)])
    return proposal.tokens


def naive(tokens: list[int], longest: int, shortest: int, limit: int) -> tuple[int, ...]:
    for length in range(longest, shortest - 1, -1):
        tail = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tail:
                following: list[int] = []
                for index in range(start + length, start + length + max(limit, 0)):
                    following.append((tokens + following)[index])
                stop = following.index(MEDIA_TOKEN) if MEDIA_TOKEN in following else len(following)
                return tuple(following[:stop])
    return ()


@given(histories, st.integers(1, 4), st.integers(0, 3), st.integers(-1, 9))
def test_a_proposal_is_what_followed_the_latest_longest_match(
    tokens: list[int], shortest: int, more: int, limit: int
) -> None:
    drafter = NgramDrafter(longest=shortest + more, shortest=shortest)
    assert propose(drafter, tokens, limit) == naive(tokens, shortest + more, shortest, limit)


@given(histories, st.integers(-1, 9))
def test_a_proposal_stays_within_its_limit_and_never_names_media(tokens: list[int], limit: int) -> None:
    proposal = propose(NgramDrafter(), tokens, limit)
    assert len(proposal) <= max(limit, 0)
    assert all(token >= 0 for token in proposal)


def test_what_repeats_goes_on_repeating() -> None:
    assert propose(NgramDrafter(), [5, 5, 5, 5], limit=6) == (5,) * 6
    assert propose(NgramDrafter(), [1, 2, 3, 4, 1, 2, 3], limit=6) == (4, 1, 2, 3, 4, 1)


def test_a_longer_match_beats_a_later_one() -> None:
    assert propose(NgramDrafter(4, 2), [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], limit=1) == (7,)


def test_of_equal_matches_the_latest_is_followed() -> None:
    assert propose(NgramDrafter(4, 2), [2, 3, 7, 2, 3, 8, 2, 3], limit=1) == (8,)


def test_without_a_match_there_is_no_idea() -> None:
    assert propose(NgramDrafter(), [1, 2, 3, 4]) == propose(NgramDrafter(), []) == propose(NgramDrafter(), [1]) == ()


def test_each_request_is_answered_in_order() -> None:
    rows = [[1, 2, 3, 1, 2], [5, 6], [7, 8, 9, 7, 8]]
    requests = [DraftRequest(i, np.array(row, np.int32), held=0, limit=1) for i, row in enumerate(rows)]
    assert [proposal.tokens for proposal in NgramDrafter(4, 2).propose(requests)] == [(3,), (), (9,)]
    assert NgramDrafter().propose([]) == []


@pytest.mark.parametrize(("longest", "shortest"), [(1, 2), (0, 0), (3, 0)])
def test_lengths_that_make_no_sense_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(ValueError, match="n-gram lengths"):
        NgramDrafter(longest=longest, shortest=shortest)


def test_a_longer_match_has_a_higher_grade() -> None:
    copy = list(range(20))
    grades = [
        NgramDrafter().propose([DraftRequest(0, np.array([*copy, 99, *copy[:length]], np.int32), 0, 4)])[0].grade
        for length in (3, 5, 9, 17)
    ]
    assert grades == sorted(set(grades))


@pytest.mark.parametrize("origins", [((["x"], 3),), (("a", 5), ("b", -2)), (("a", 1.5), ("b", 1.5)), ((1, 3),)])
def test_odd_origins_of_a_plug_in_cost_speed_only(origins: Any) -> None:
    class Odd:
        name = "odd"

        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return [Proposal((5, 6, 7), origins=origins) for _ in requests]

    assert GuardedDrafter(Odd(), 10).propose([DraftRequest(0, np.array([1, 2], np.int32), held=0, limit=8)]) == [
        Proposal()
    ]


def test_a_hook_without_end_is_read_as_far_as_is_wanted() -> None:
    class Endless:
        def forced(self, output: Tokens, limit: int) -> Any:  # noqa: ARG002 (the protocol's)
            return itertools.repeat(4)

    assert checked_forced(Endless(), np.array([], np.int32), 3, 10) == Proposal((4, 4, 4))
