"""Requests of Anthropic's Messages API as jobs."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.errors import InvalidRequestError
from forerun.server.anthropic.job import counted_job, message_job
from forerun.server.body import validated
from forerun.server.jobs import ChatJob, Pin, ToolChoice
from forerun.server.problems import ProblemError, problem_of
from forerun.server.wire.messages import CountTokensRequest, MessagesRequest

WEATHER = {"name": "weather", "description": "Asks the sky.", "input_schema": {"type": "object"}}
PINNED = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def job(*messages: Any, **fields: Any) -> ChatJob:
    body = {"model": "m", "max_tokens": 9, "messages": list(messages) or [user("hello")], **fields}
    return message_job(validated(MessagesRequest, body), "tenant")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def call(call_id: str = "t1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "weather", "input": {"city": "Bern"}}


def result(content: Any, call_id: str = "t1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def test_the_system_prompt_is_the_first_message() -> None:
    said = [{"role": "system", "content": "Be brief.\nBe kind."}, {"role": "user", "content": "hello"}]
    assert job(system=[text("Be brief."), text("Be kind.")]).messages == said
    assert job(system="Be brief.\nBe kind.").messages == said


def test_neighbours_of_one_role_are_one_turn() -> None:
    assert job(user("a"), user([text("b")])).messages == [{"role": "user", "content": "a\nb"}]


def test_a_tool_round_trip_passed_back_is_the_conversation_it_was() -> None:
    """Case A6: blocks of an answer are sent back as they came, with the tools' results."""
    asked = job(
        user("Weather?"),
        assistant({"type": "thinking", "thinking": "Look.", "signature": "s"}, text("Wait."), call(), call("t2")),
        user([result("rain"), result([text("sun")], "t2", is_error=True), text("And?")]),
    )
    function = {"name": "weather", "arguments": '{"city":"Bern"}'}
    assert asked.messages == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "Look.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": function},
                {"id": "t2", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain", "name": "weather"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: sun", "name": "weather"},
        {"role": "user", "content": "And?"},
    ]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", ("weather",)), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_tools_may_be_chosen(choice: Any, expected: ToolChoice, parallel: bool) -> None:  # noqa: FBT001
    asked = job(tools=[WEATHER], tool_choice=choice)
    assert (asked.tool_choice, asked.parallel_tool_calls) == (expected, parallel)
    assert asked.tools[0].description == "Asks the sky."


def test_examples_of_a_tools_input_are_described() -> None:
    (tool,) = job(tools=[{**WEATHER, "input_examples": [{"city": "Bern"}]}]).tools
    assert tool.description == 'Asks the sky.\nExample of its input: {"city":"Bern"}'


def test_marks_pin_up_to_the_end_of_their_message() -> None:
    asked = job(
        user([text("long", cache_control=PINNED)]),
        assistant(text("a"), call()),
        user([result("r", cache_control=HOUR), text("go on")]),
        system=[text("s", cache_control=HOUR)],
        tools=[{**WEATHER, "cache_control": PINNED}],
    )
    assert asked.pins == [Pin(0, 300.0), Pin(1, 3600.0), Pin(2, 300.0), Pin(4, 3600.0)]
    assert len(asked.messages) == 5


def test_a_mark_of_the_request_pins_all_of_it() -> None:
    assert job(user("a"), assistant(text("b")), user("c"), cache_control=HOUR).pins == [Pin(3, 3600.0)]


@pytest.mark.parametrize(
    ("thinking", "kwargs"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "adaptive"}, {}),
    ],
)
def test_thinking_is_the_templates_to_have(thinking: dict[str, Any], kwargs: dict[str, Any]) -> None:
    assert job(thinking=thinking, max_tokens=2000).template_kwargs == kwargs


def test_output_config_gives_effort_and_a_grammar() -> None:
    asked = job(output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "string"}}})
    assert asked.template_kwargs == {"reasoning_effort": "high"}
    assert asked.grammar is not None
    assert asked.grammar.text == '{"type":"string"}'


def test_sampling_is_as_asked() -> None:
    params = job(stop_sequences=["x", "y"], temperature=0.5, top_k=3, top_p=0.5).params
    assert (params.stop, params.temperature, params.top_k, params.top_p, params.max_tokens) == (
        ("x", "y"),
        0.5,
        3,
        0.5,
        9,
    )


def test_hints_for_hosted_services_change_nothing() -> None:
    asked = job(
        metadata={"user_id": "u"},
        service_tier="auto",
        speed="standard",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        mcp_servers=[],
        container=None,
        betas=["x"],
        tools=[{**WEATHER, "eager_input_streaming": True, "type": "custom", "allowed_callers": ["direct"]}],
    )
    assert asked.messages == [{"role": "user", "content": "hello"}]


def test_tokens_are_counted_of_the_same_prompt() -> None:
    body = {"model": "m", "messages": [user("hello")], "system": "s", "tools": [WEATHER]}
    counted = counted_job(validated(CountTokensRequest, body), "")
    asked = job(system="s", tools=[WEATHER])
    assert (counted.messages, counted.tools) == (asked.messages, asked.tools)


DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aa"}}
STORED = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": None}, "max_tokens", "valid integer"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [user([DOCUMENT])]}, "messages[0].content[0].type", "documents are not read here"),
        ({"messages": [user([result([DOCUMENT])])]}, "messages[0].content[0].content[0].type", "documents"),
        ({"messages": [user([STORED])]}, "messages[0].content[0].source.type", "must be base64 or url"),
        ({"messages": [user([result("x")])]}, "messages[0].content[0].tool_use_id", "no tool_use"),
        ({"messages": [user([call()])]}, "messages[0].content[0]", "messages of the assistant"),
        ({"messages": [user("a"), assistant(text("b"))]}, "messages[1]", "cannot be begun"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages", "nothing to answer"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type", "must be 'custom'"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading", "no tool search"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [WEATHER]}, "tool_choice", "not among"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name", "required there"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "no tools"),
        ({"stop_sequences": [""]}, "stop_sequences", "empty"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "at most 16"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "thinking.budget_tokens", "less than max_tokens, 9"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type", "must be enabled"),
        ({"container": "c"}, "container", "not supported"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "must be empty"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits", "keep"),
        ({"speed": "fast"}, "speed", "standard"),
        ({"system": [text("s", cache_control=PINNED)] * 5}, "cache_control", "at most 4"),
        ({"colour": 1}, "colour", "not known"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises((ProblemError, InvalidRequestError), match=words) as caught:
        job(**fields)
    assert problem_of(caught.value).param == param
