"""A constraint is asked by position: whatever it was asked before, the answer is that of a fresh one."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from forerun.core.grammar import Grammar
from forerun.structured.constraint import GrammarConstraint
from tests.structured.support import (
    CALLS,
    END,
    STOP,
    TABLE,
    WORD_IDS,
    bytes_of,
    constraint,
    gbnf,
    history,
    lark,
    legal,
    regex,
    schema,
)

LIST = '{"type": "array", "items": {"enum": ["a", "ab", "b"]}, "maxItems": 4}'
GRAMMARS = [
    regex("(ab|a)*c"),
    schema(LIST),
    schema(LIST, after="</think>"),
    gbnf('root ::= "(" root ")" | [ab]{1,3} root?'),
    lark('start: "a" <tool_call> %json {"type": "integer"}'),
    regex("true|ten", after=">"),
]
ALPHABET = [*bytes_of('[]",ab()c1 tren>'), *WORD_IDS.values(), END, STOP, CALLS]
rows = st.lists(st.sampled_from(ALPHABET), max_size=6)


def fresh(grammar: Grammar, taken: list[int], block: list[int], tokens: list[int]) -> tuple[list[bool], int]:
    own = constraint(grammar)
    at = history(taken)
    allowed = own.allowed(at, block)
    assert allowed is not None
    return allowed.tolist(), constraint(grammar).accepted(at, block, tokens)


@settings(max_examples=60, deadline=None)
@given(grammar=st.sampled_from(GRAMMARS), data=st.data())
def test_where_it_was_before_makes_no_difference(grammar: Grammar, data: st.DataObject) -> None:
    """Blocks that are accepted, rejected, tried again; drafts asked about; and an answer that grows meanwhile."""
    own, taken = constraint(grammar), list[int]()
    for _ in range(data.draw(st.integers(1, 6))):
        block = data.draw(rows)
        tokens = data.draw(rows)
        allowed, accepted = fresh(grammar, taken, block, tokens)
        if data.draw(st.booleans()):
            assert own.accepted(history(taken), block, tokens) == accepted
        found = own.allowed(history(taken), block)
        assert found is not None
        assert found.tolist() == allowed
        assert own.accepted(history(taken), block, tokens) == accepted
        own.forced(history(taken), 3)
        taken = [*taken, *data.draw(legal_rows(grammar, taken))]


def legal_rows(grammar: Grammar, taken: list[int]) -> st.SearchStrategy[list[int]]:
    """What an answer may go on with: it consists of tokens that were allowed."""

    def walk(choices: list[int]) -> list[int]:
        own, row = constraint(grammar), list[int]()
        for choice in choices:
            allowed = own.allowed(history(taken), row)
            assert allowed is not None
            ids = [token for token in ALPHABET if allowed[token]]
            if not ids:
                break
            row.append(ids[choice % len(ids)])
        return row

    return st.lists(st.integers(0, 100), max_size=3).map(walk)


@settings(max_examples=60, deadline=None)
@given(grammar=st.sampled_from(GRAMMARS), choices=st.lists(st.integers(0, 10_000), max_size=12))
def test_what_is_allowed_is_accepted_and_what_is_forced_too(grammar: Grammar, choices: list[int]) -> None:
    own, taken = constraint(grammar), list[int]()
    for choice in choices:
        allowed = own.allowed(history(taken), ())
        assert allowed is not None
        ids = np.flatnonzero(allowed).tolist()
        forced = list(own.forced(history(taken), 8))
        assert own.accepted(history(taken), (), forced) == len(forced)
        if not ids:
            assert taken[-1] in TABLE.end_tokens
            return
        token = ids[choice % len(ids)]
        assert own.accepted(history(taken), (), (token,)) == 1
        taken.append(token)


def test_an_answer_ends_where_the_grammar_is_complete_and_only_there() -> None:
    own = constraint(regex("ab"))
    assert legal(own, ()) == set(bytes_of("a"))
    assert legal(own, bytes_of("ab")) == {END, STOP}
    assert legal(own, [*bytes_of("ab"), END]) == set()
    assert own.accepted(history(), bytes_of("a"), (END,)) == 0
    assert own.accepted(history(bytes_of("a")), bytes_of("b"), (END, END)) == 1


def test_forced_text_comes_in_words_of_the_vocabulary() -> None:
    own = constraint(regex("hello (a|b)"))
    assert own.forced(history(), 9) == [WORD_IDS[b"hello"], ord(" ")]
    assert own.forced(history(), 1) == [WORD_IDS[b"hello"]]
    assert list(own.forced(history(bytes_of("hello ")), 9)) == []


def test_behind_a_refused_token_nothing_may_come() -> None:
    own = constraint(regex("abc"))
    assert own.accepted(history(), bytes_of("x"), bytes_of("a")) == 0
    assert not own.allowed(history(), bytes_of("x")).any()  # type: ignore[union-attr]
    assert own.accepted(history(), (), bytes_of("abc")) == 3


# --- grammars that start behind a marker (case S7) ----------------------------------------------------------

ANSWER = schema('{"type": "object"}', after="</think>")
ONE_TOKEN = [WORD_IDS[b"</think>"]]
SEVERAL = [WORD_IDS[b"</"], WORD_IDS[b"think"], ord(">")]


@pytest.mark.parametrize("marker", [ONE_TOKEN, SEVERAL, bytes_of("</think>")])
def test_case_s7_before_the_marker_all_but_an_end_may_come_and_behind_it_the_grammar_holds(marker: list[int]) -> None:
    own = constraint(ANSWER)
    before = [*bytes_of("hm {] </thin> "), CALLS]
    assert legal(own, before) == set(range(TABLE.size)) - {END, STOP}
    behind = legal(own, [*before, *marker])
    assert behind == {ord("{"), WORD_IDS[b'{"'], *bytes_of(" \t\r\n"), WORD_IDS[b"\n\n"]}


@pytest.mark.parametrize("marker", [ONE_TOKEN, SEVERAL])
def test_case_s7_the_switch_happens_inside_a_block_of_drafts(marker: list[int]) -> None:
    own = constraint(ANSWER)
    fences = bytes_of("```json")
    drafts = [*bytes_of("hm"), *marker, *fences]
    assert own.accepted(history(), (), drafts) == 2 + len(marker)
    assert own.accepted(history(), [*bytes_of("hm"), *marker], bytes_of('{"a')) == 3
    assert own.accepted(history(), (), [*bytes_of("hm"), *fences]) == 2 + len(fences)
    assert fences[0] not in legal(own, [*bytes_of("hm"), *marker])


def test_case_s7_a_token_may_complete_the_marker_and_begin_the_answer() -> None:
    own = constraint(ANSWER)
    before = [WORD_IDS[b"</"], WORD_IDS[b"think"]]
    allowed = legal(own, before)
    assert {WORD_IDS[b">\n"], WORD_IDS[b">{"], ord(">")} <= allowed
    assert WORD_IDS[b'{"'] not in legal(own, [*before, WORD_IDS[b">{"]])
    assert ord('"') in legal(own, [*before, WORD_IDS[b">{"]])
    digits = constraint(regex("[0-9]+", after="</think>"))
    allowed = legal(digits, before)
    assert not {WORD_IDS[b">\n"], WORD_IDS[b">{"]} & allowed
    assert ord(">") in allowed
    assert digits.accepted(history(before), (), (WORD_IDS[b">\n"],)) == 0


def test_only_the_first_marker_counts() -> None:
    own = constraint(schema('{"type": "string"}', after="</think>"))
    text = bytes_of('</think>"</think>"')
    assert own.accepted(history(), (), [*text, END]) == len(text) + 1


def test_a_marker_may_be_a_control_token() -> None:
    own = constraint(regex("[0-9]", after="<tool_call>"))
    assert own.accepted(history(), (), [*bytes_of("ab"), TABLE.control_ids[b"<tool_call>"], ord("5"), END]) == 5


def test_a_rejected_marker_leaves_no_trace() -> None:
    own = constraint(ANSWER)
    assert own.accepted(history(), (), [*SEVERAL, ord("{")]) == 4
    assert legal(own, bytes_of("x")) == legal(constraint(ANSWER), bytes_of("x"))


# --- limits while an answer is written ----------------------------------------------------------


def tired(states: int) -> GrammarConstraint:
    from llguidance import LLMatcher, LLParserLimits

    from tests.structured.support import TOKENS

    source = LLMatcher.grammar_from_regex("(.*a.{20})|(.*b.{20}c)")
    limits = LLParserLimits(max_lexer_states=states, verbose_errors=False)
    return GrammarConstraint(LLMatcher(TOKENS.tokenizer, source, log_level=0, limits=limits), TOKENS)


def test_a_matcher_that_runs_into_a_limit_lets_nothing_come_and_says_why() -> None:
    own = tired(60)
    text = bytes_of("aabbabcabcbabababccbaabcba" * 4)
    reached = next(count for count in range(len(text)) if not legal(own, text[:count]))
    assert reached > 0
    assert own.problem is not None
    assert "too many states" in own.problem
    assert own.accepted(history(), text[:reached], (END,)) == 0
    assert own.problem is not None


def test_masks_are_of_the_vocabulary_s_size_and_each_its_own() -> None:
    own = constraint(regex("a"))
    first = own.allowed(history(), ())
    assert first is not None
    assert first.shape == (TABLE.size,)
    first[:] = False
    np.testing.assert_array_equal(own.allowed(history(), ()), constraint(regex("a")).allowed(history(), ()))
