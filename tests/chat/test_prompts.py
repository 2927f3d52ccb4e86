"""What callers send becomes the prompt their model was trained on, whatever form it had."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.chat.prompts import PromptWriter
from forerun.chat.templates import ChatTemplate
from forerun.errors import InvalidRequestError
from tests.chat.family_templates import CHATML, GEMMA, HERMES, MISTRAL
from tests.chat.parsing import SEARCH, WEATHER

HELLO = [{"role": "user", "content": "Hello"}]
CALL = {"id": "call00001", "type": "function", "function": {"name": "search", "arguments": '{"query":"x"}'}}


def written(source: str, messages: Any, **options: Any) -> str:
    return PromptWriter(ChatTemplate(source, "<s>", "</s>")).render(messages, **options).text


def round_trip(asked: Any, called: Any, result: Any, **more: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", **called, "tool_calls": [CALL], **more},
        {"role": "tool", "tool_call_id": "call00001", "content": result},
    ]


@pytest.mark.parametrize("source", [CHATML, HERMES, MISTRAL, GEMMA])
@pytest.mark.parametrize("called", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_a6_no_content_and_parts_give_the_same_prompt_as_text(source: str, called: dict[str, Any]) -> None:
    parts = [{"type": "text", "text": "Find"}, {"type": "text", "text": "x"}]
    plain = written(source, round_trip("Find\nx", {"content": ""}, "42"), tools=[SEARCH])
    assert written(source, round_trip(parts, called, [{"type": "text", "text": "42"}]), tools=[SEARCH]) == plain
    for word in ("Find\nx", "search", "42"):
        assert word in plain


def test_arguments_of_calls_are_objects_where_the_template_writes_json() -> None:
    assert '"arguments": {"query": "x"}' in written(HERMES, round_trip("a", {}, "b"))


def test_arguments_of_calls_stay_the_text_they_were_where_the_template_wants_text() -> None:
    assert '[TOOL_CALLS]search[ARGS]{"query":"x"}</s>' in written(MISTRAL, round_trip("a", {}, "b"))
    asked = round_trip("a", {}, "b")
    asked[1]["tool_calls"] = [{**CALL, "function": {"name": "search", "arguments": {"query": "x"}}}]
    assert '[ARGS]{"query": "x"}' in written(MISTRAL, asked)


def test_arguments_that_are_no_json_are_kept() -> None:
    asked = round_trip("a", {}, "b")
    asked[1]["tool_calls"] = [{**CALL, "function": {"name": "search", "arguments": '{"query": "cut'}}]
    assert "cut" in written(HERMES, asked)


def test_functions_of_the_old_kind_become_tools() -> None:
    old = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "function", "name": "search", "content": "b"},
    ]
    new = [*round_trip("a", {}, "b")]
    assert written(HERMES, old) == written(HERMES, new)


def test_a_tool_result_gets_the_name_of_the_function_that_was_called() -> None:
    source = "{% for m in messages %}{{ m.role }}={{ m.name }};{{ m.tool_calls }}{% endfor %}{{ tools }}"
    assert "tool=search;" in written(source, round_trip("a", {}, "b"))


def test_a_developer_is_the_system_for_templates_that_do_not_know_one() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *HELLO]
    assert written(CHATML, messages).startswith("<|im_start|>system\nBe brief.<|im_end|>")
    knows = CHATML + "{# developer #}"
    assert written(knows, messages).startswith("<|im_start|>developer\n")


def test_late_system_messages_go_where_the_template_takes_them() -> None:
    late = [*HELLO, {"role": "system", "content": "One."}, {"role": "user", "content": "More"}]
    assert written(CHATML, late).count("<|im_start|>system") == 1
    assert written(MISTRAL, [{"role": "system", "content": "Zero."}, *late]).startswith(
        "<s>[INST]Zero.\n\nOne.\n\nHello"
    )


def test_a_template_without_system_messages_gets_them_in_the_users_words() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert written(GEMMA, messages).startswith("<s><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>")
    assert "Be brief." in written(GEMMA, messages[:1])


def test_tools_are_told_in_words_where_the_template_knows_none() -> None:
    prompt = written(CHATML, HELLO, tools=[WEATHER])
    assert prompt.startswith("<|im_start|>system\n")
    assert '"name": "get_weather"' in prompt
    assert '{"tool_calls": [{"name":' in prompt
    history = written(GEMMA, round_trip("Find x", {}, "42"), tools=[SEARCH])
    assert '<start_of_turn>model\n{"tool_calls": [{"name": "search", "arguments": {"query": "x"}}]}' in history
    assert '{"tool_result": {"name": "search", "content": "42"}}' in history


def test_a_template_that_knows_tools_gets_them_as_openai_has_them() -> None:
    prompt = written(HERMES, HELLO, tools=[WEATHER])
    assert '\n{"type": "function", "function": {"name": "get_weather", "description": "Current weather", "par' in prompt
    assert "You can call" not in prompt
    assert '"parameters": {"type": "object", "properties": {}}' in written(HERMES, HELLO, tools=[type(WEATHER)("now")])


def test_template_kwargs_are_names_in_the_template_and_cannot_replace_its_own() -> None:
    assert written(HERMES, HELLO).endswith("<think>\n")
    assert written(HERMES, HELLO, template_kwargs={"enable_thinking": False}).endswith("</think>\n\n")
    for name in ("messages", "tools", "bos_token", "add_generation_prompt", "raise_exception"):
        with pytest.raises(InvalidRequestError, match=f"^chat_template_kwargs: .*{name}"):
            written(HERMES, HELLO, template_kwargs={name: "x"})


@pytest.mark.parametrize("source", [CHATML, GEMMA])
def test_the_last_message_can_be_continued(source: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well, "}]
    assert written(source, messages, continue_final_message=True).endswith("Well, ")
    with pytest.raises(InvalidRequestError, match="the last message must be the assistant's"):
        written(source, HELLO, continue_final_message=True)


def test_reasoning_of_earlier_answers_is_there_for_templates_that_want_it() -> None:
    source = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}|{{ messages[0].tool_calls is defined }}"
    for key in ("reasoning_content", "reasoning", "thinking"):
        messages = [{"role": "assistant", "content": "x", key: "Hm.", "tool_calls": None}]
        assert written(source, messages) == "Hm.|Hm.|False"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "robot", "content": "x"}, r"messages\[0\].role"),
        ({"role": "user", "content": 5}, r"messages\[0\].content"),
        ({"role": "user", "content": [5]}, r"messages\[0\].content\[0\]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, r"messages\[0\].content\[0\]"),
        ({"role": "user", "content": [{"type": "text"}]}, r"messages\[0\].content\[0\].text"),
        ({"role": "assistant", "tool_calls": "x"}, r"messages\[0\].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, r"messages\[0\].tool_calls\[0\]"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, r"messages\[0\].tool_calls\[0\]"),
    ],
)
def test_a_malformed_message_is_refused_by_field(message: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        written(CHATML, [message])
