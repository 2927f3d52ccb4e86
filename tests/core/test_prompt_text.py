"""The text of a prompt, cut where media stands in it."""

from __future__ import annotations

from forerun.core.prompt_text import PromptText


def test_a_text_without_media_is_one_piece_and_an_empty_one_none() -> None:
    assert list(PromptText("ab", ((0, 1),)).cut()) == [PromptText("ab", ((0, 1),))]
    assert list(PromptText("").cut()) == []


def test_media_cuts_the_text_where_it_stands_and_nothing_empty_is_left() -> None:
    text = PromptText("abcd", media=((0, 1), (2, 0), (2, 2), (4, 3)))
    assert list(text.cut()) == [1, PromptText("ab"), 0, 2, PromptText("cd"), 3]


def test_what_is_plain_stays_so_in_its_piece() -> None:
    text = PromptText("ab<x>c<x>", ((2, 5), (6, 9)), ((5, 0),))
    assert list(text.cut()) == [PromptText("ab<x>", ((2, 5),)), 0, PromptText("c<x>", ((1, 4),))]


def test_what_follows_a_place_keeps_its_media() -> None:
    text = PromptText("abcdef", ((4, 6),), ((1, 0), (2, 1), (3, 2)))
    assert text.after(2) == PromptText("cdef", ((2, 4),), ((0, 1), (1, 2)))
