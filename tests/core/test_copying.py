"""Copies with slips: the n-gram drafter goes on behind an edit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.copying import Copy
from forerun.core.drafting import FROM_THE_START, ONE_NEARBY, REPLACED_ONE, NgramDrafter
from forerun.core.prompt import PromptLayout
from forerun.core.request import Request, SamplingParams
from forerun.core.step import DraftRequest, Proposal

SOURCE = list(range(100, 140))


def proposals(prompt: list[int], answer: list[int], drafter: NgramDrafter | None = None) -> list[Proposal]:
    """What is proposed after each token of an answer, asked one after another."""
    drafter = drafter or NgramDrafter()
    request = Request(id="a", prompt=PromptLayout.of_text(prompt), params=SamplingParams(max_tokens=99))
    text = np.array(prompt + answer, np.int32)
    asked = [DraftRequest(0, text[: len(prompt) + end], 0, 4, request) for end in range(1, len(answer) + 1)]
    return [drafter.propose([one])[0] for one in asked]


@pytest.mark.parametrize(
    ("edit", "following"),
    [
        pytest.param([7], 111, id="one token replaced"),
        pytest.param([112], 113, id="two tokens left out"),
        pytest.param([7, 110], 111, id="a token put in"),
        pytest.param([7, 8, 9, 111], 112, id="one token replaced by three"),
    ],
)
def test_behind_an_edit_the_copy_goes_on_at_once(edit: list[int], following: int) -> None:
    last = proposals(SOURCE, SOURCE[:10] + edit)[-1]
    assert last.tokens == tuple(range(following, following + 4))


def test_kinds_of_edits_have_grades_of_their_own() -> None:
    replaced, put_in = (proposals(SOURCE, SOURCE[:10] + edit)[-1].grade for edit in ([7], [7, 110]))
    assert (replaced, put_in) == (REPLACED_ONE, ONE_NEARBY)


def test_an_answer_that_began_as_a_copy_is_told_from_a_match_in_passing() -> None:
    beginning = proposals(SOURCE, SOURCE[:4])[-1]
    passing = proposals(SOURCE, [1, 2, 3, *SOURCE[:4]])[-1]
    assert beginning.tokens == passing.tokens == (104, 105, 106, 107)
    assert beginning.grade == FROM_THE_START != passing.grade


def test_a_short_match_is_no_copy_to_go_back_to() -> None:
    assert not proposals(SOURCE, [*SOURCE[:4], 7])[-1].tokens


def test_a_copy_that_was_broken_off_long_ago_is_given_up() -> None:
    assert not proposals(SOURCE, [*SOURCE[:10], *range(500, 600)])[-1].tokens


def test_another_request_on_the_same_sequence_begins_afresh_even_under_the_same_name() -> None:
    drafter = NgramDrafter()
    proposals(SOURCE, SOURCE[:10], drafter)
    other = Request(id="a", prompt=PromptLayout.of_text([*SOURCE, *SOURCE[:10]]), params=SamplingParams())
    text = np.array([*SOURCE, *SOURCE[:10], 7], np.int32)
    assert drafter.propose([DraftRequest(0, text, 0, 4, other)]) == [Proposal()]


def test_each_edit_halves_the_trust_in_a_copy() -> None:
    tokens = np.array([*SOURCE, *SOURCE[:20], 7, *SOURCE[21:24]], np.int32)
    copy = Copy(source=8, at=48, length=8)
    copy.follow(tokens)
    assert (copy.at, copy.source, copy.length) == (60, 20, 20)
    assert copy.nearby(tokens) == (24, 3)
    copy.resume(24, tokens)
    assert (copy.at, copy.source, copy.length) == (64, 24, 10)


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.integers(1, 59), st.integers(1, 6))
def test_whatever_is_proposed_stands_in_the_text(tokens: list[int], prompt: int, limit: int) -> None:
    prompt = min(prompt, len(tokens) - 1)
    for proposal in proposals(tokens[:prompt], tokens[prompt:]):
        assert len(proposal.tokens) <= max(limit, 4)
        assert set(proposal.tokens) <= set(tokens)
