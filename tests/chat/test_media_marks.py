"""Pictures in messages stand in the prompt where their part stood, and nothing that anybody writes passes for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.chat.prompts import PromptWriter
from forerun.chat.templates import ChatTemplate
from forerun.core.prompt_text import PromptText
from forerun.errors import InvalidRequestError
from forerun.media.parts import media_of
from forerun.testing.served import ByteVocabulary
from tests.chat.family_templates import CHATML, GEMMA, HERMES, MISTRAL
from tests.chat.parsing import SEARCH

IMAGE = {"type": "image", "image": "a picture"}
TYPED = (
    "{% for message in messages %}<{{ message.role }}>{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
DEAF = "{% for message in messages %}{% if message.role != 'user' %}{{ message.content }}{% endif %}{% endfor %}"


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def image(name: str) -> dict[str, str]:
    return {"type": "image", "image": name}


def written(source: str, messages: Any, **options: Any) -> PromptText:
    return PromptWriter(ChatTemplate(source, "<s>", "</s>"), ByteVocabulary.control_tokens).render(messages, **options)


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def shown(prompt: PromptText) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else part.text for part in prompt.cut())


@pytest.mark.parametrize("source", [CHATML, HERMES, MISTRAL, GEMMA, TYPED])
def test_a_picture_stands_where_its_part_stood(source: str) -> None:
    messages = [
        *user(text("one"), text("line"), image("a"), text("between"), image("b"), image("c")),
        {"role": "assistant", "content": "Yes."},
        *user(image("d"), text("after")),
    ]
    prompt = shown(written(source, messages))
    assert "one\nline[0]between[1][2]" in prompt
    assert "[3]after" in prompt
    assert media_of(messages) == ["a", "b", "c", "d"]


def test_the_text_is_what_it_is_without_pictures() -> None:
    assert written(CHATML, user(text("a"), IMAGE, text("b"))).text == written(CHATML, user(text("ab"))).text


def test_a_picture_that_a_tool_gave_stands_in_its_result_also_where_results_are_told_in_words() -> None:
    called = {"id": "call00001", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        *user(text("Find")),
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call00001", "content": [text("seen: "), IMAGE]},
    ]
    for source in (HERMES, CHATML):
        assert "seen: [0]" in shown(written(source, messages, tools=[SEARCH]))


MARKS = ["\U00100000", "\U00100001", "<|im_end|>", "<|im_", "end|>", "[0]", "<__media__>", "a", " "]


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.lists(st.sampled_from(MARKS), max_size=5), min_size=1, max_size=4))
def test_no_words_pass_for_a_picture_and_all_arrive(words: list[list[str]]) -> None:
    said = ["".join(some) for some in words]
    parts = [part for one in said for part in (text(one), IMAGE)]
    prompt = written(CHATML, user(*parts))
    pieces = list(prompt.cut())
    assert [piece for piece in pieces if isinstance(piece, int)] == list(range(len(said)))
    assert shown(prompt).startswith(
        "<|im_start|>user\n" + "".join(f"{one}[{n}]" for n, one in enumerate(said)) + "<|im"
    )
    assert {prompt.text[start:end] for start, end in prompt.plain} <= {"<|im_end|>"}
    assert len(prompt.plain) == sum(one.count("<|im_end|>") for one in said)


def test_control_tokens_put_together_around_a_picture_are_none() -> None:
    prompt = written(CHATML, user(text("<|im_"), IMAGE, text("end|>")))
    assert [part.text if isinstance(part, PromptText) else part for part in prompt.cut()] == [
        "<|im_start|>user\n<|im_",
        0,
        "end|><|im_end|>\n<|im_start|>assistant\n",
    ]


def test_a_template_that_leaves_a_picture_out_is_told_of() -> None:
    with pytest.raises(InvalidRequestError, match="messages: the model's chat template leaves out item 1 of the 2"):
        written(DEAF, [*user(IMAGE, IMAGE), {"role": "assistant", "content": "x"}])


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_users_and_tools_show_pictures(role: str) -> None:
    messages = [*user(text("a")), {"role": role, "content": [text("b"), IMAGE]}]
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.content\[1\]: images and recordings belong to"):
        written(CHATML, messages)


def test_an_answer_is_gone_on_with_behind_a_picture() -> None:
    messages = [*user(IMAGE, text("What is it?")), {"role": "assistant", "content": "A cat"}]
    for source in (CHATML, TYPED):
        prompt = written(source, messages, continue_final_message=True)
        assert prompt.text.endswith("A cat")
        assert "[0]What is it?" in shown(prompt)
