"""Conversations keep the tokens that were read and written, wherever the rendered text allows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from forerun.chat.conversation import Conversation
from forerun.core.prompt import Tokens, as_tokens
from forerun.core.prompt_text import PromptText

END = 0
_WORDS = {1: "ab", 2: "a", 3: "b", 4: "<u>", 5: "<a>", 6: "c", 7: ">", 8: "c>"}


class GreedyCodec:
    """Longest word first, so that "ab" is one token where "a", "b" were generated. 0 ends a turn, written "$"."""

    end_tokens = frozenset({END})

    def tokenize(self, prompt: PromptText) -> Tokens:
        text, tokens = prompt.text, []
        while text:
            known = [token for token, word in _WORDS.items() if text.startswith(word)]
            token = max(known, key=lambda token: len(_WORDS[token]), default=END)
            tokens.append(token)
            text = text[len(_WORDS.get(token, "$")) :]
        return as_tokens(tokens)

    def tokenize_continuation(self, prompt: PromptText) -> Tokens:
        return self.tokenize(prompt)

    def bytes_of(self, tokens: Iterable[int]) -> bytes:
        return "".join(_WORDS.get(int(token), "") for token in tokens).encode()


def render(messages: Sequence[Mapping[str, Any]]) -> PromptText:
    turns = {"system": "{}$", "user": "<u>{}$", "assistant": "<a>{}$"}
    return PromptText("".join(turns[message["role"]].format(message["content"]) for message in messages) + "<a>")


def test_an_answer_keeps_the_tokens_it_was_generated_as() -> None:
    conversation = Conversation(render, GreedyCodec())
    assert conversation.ask("c").tolist() == [4, 6, END, 5]
    conversation.answered("ab", [2, 3, END])
    assert conversation.ask("c").tolist() == [4, 6, END, 5, 2, 3, END, 4, 6, END, 5]


def test_a_system_message_comes_first() -> None:
    assert Conversation(render, GreedyCodec(), "ab").ask("c").tolist() == [1, END, 4, 6, END, 5]


def test_an_answer_cut_off_by_a_limit_is_continued_by_the_template() -> None:
    conversation = Conversation(render, GreedyCodec())
    conversation.ask("c")
    conversation.answered("ab", [2, 3])
    assert conversation.ask("c").tolist() == [4, 6, END, 5, 2, 3, END, 4, 6, END, 5]


def test_where_text_and_tokens_disagree_the_text_counts() -> None:
    conversation = Conversation(render, GreedyCodec())
    conversation.ask("c")
    conversation.answered("a", [2, 3, 6])  # a stop string cut the text, not the tokens
    assert conversation.ask("c").tolist() == [4, 6, END, 5, 2, END, 4, 6, END, 5]


def test_a_template_that_rewrites_earlier_turns_is_rendered_afresh() -> None:
    def forgetful(messages: Sequence[Mapping[str, Any]]) -> PromptText:
        return render([message for message in messages[:-1] if message["role"] == "user"] + [messages[-1]])

    conversation = Conversation(forgetful, GreedyCodec())
    conversation.ask("c")
    conversation.answered("ab", [2, 3, END])
    assert conversation.ask("c").tolist() == [4, 6, END, 4, 6, END, 5]


def test_tokens_that_reach_across_the_cut_are_not_torn() -> None:
    def tight(messages: Sequence[Mapping[str, Any]]) -> PromptText:
        ends = [">" if message["role"] == "assistant" else "$" for message in messages]
        return PromptText("".join(message["content"] + end for message, end in zip(messages, ends, strict=True)))

    conversation = Conversation(tight, GreedyCodec())
    conversation.ask("a")
    conversation.answered("c", [6])
    assert (
        conversation.ask("a").tolist() == GreedyCodec().tokenize(PromptText("a$c>a$")).tolist() == [2, END, 8, 2, END]
    )


def test_a_withdrawn_message_leaves_no_trace() -> None:
    conversation = Conversation(render, GreedyCodec())
    conversation.ask("c")
    conversation.answered("ab", [2, 3, END])
    before = conversation.ask("a").tolist()
    conversation.withdraw()
    assert conversation.ask("a").tolist() == before


def test_a_message_the_template_refuses_is_not_taken_in() -> None:
    def strict(messages: Sequence[Mapping[str, Any]]) -> PromptText:
        if messages[-1]["content"] == "b":
            raise ValueError("no b")
        return render(messages)

    conversation = Conversation(strict, GreedyCodec())
    with pytest.raises(ValueError, match="no b"):
        conversation.ask("b")
    assert conversation.ask("c").tolist() == [4, 6, END, 5]
