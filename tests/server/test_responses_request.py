"""Requests of the Responses API as jobs."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.core.grammar import GrammarKind
from forerun.errors import InvalidRequestError
from forerun.server.body import validated
from forerun.server.jobs import ChatJob, Pin, ToolChoice
from forerun.server.problems import ProblemError, problem_of
from forerun.server.responses.job import opening, response_job
from forerun.server.wire.responses import ResponsesRequest

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def request(**fields: Any) -> ResponsesRequest:
    return validated(ResponsesRequest, {"model": "m", "input": "hello", **fields})


def job(**fields: Any) -> ChatJob:
    return response_job(request(**fields), "tenant")


def test_text_is_a_message_of_the_user_and_instructions_are_the_system_message() -> None:
    asked = job(instructions="Be brief.")
    assert asked.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert asked.tenant == "tenant"


def test_instructions_and_a_system_message_at_the_start_are_one() -> None:
    items = [{"role": "developer", "content": "In French."}, {"role": "user", "content": "hello"}]
    assert job(instructions="Be brief.", input=items).messages == [
        {"role": "developer", "content": "Be brief.\n\nIn French."},
        {"role": "user", "content": "hello"},
    ]


def test_a_tool_round_trip_passed_back_is_the_conversation_it_was() -> None:
    """Case A6: the items of an answer are sent back as they came, with the call's output."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather in Bern?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Wait.", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
        {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
    ]
    assert job(input=items).messages == [
        {"role": "user", "content": "Weather in Bern?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "Look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}},
                {"id": "c2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain", "name": "weather"},
        {"role": "tool", "tool_call_id": "c2", "content": "noon", "name": "time"},
    ]


def test_what_was_said_after_a_call_is_a_turn_of_its_own() -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert [message["role"] for message in job(input=items).messages] == ["user", "assistant", "assistant", "user"]


def test_reasoning_is_read_from_its_summary_where_there_is_no_content() -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert job(input=items).messages[1] == {"role": "assistant", "content": "b", "reasoning_content": "so"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "weather"}, ToolChoice("required", ("weather",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            ToolChoice("auto", ("weather",)),
        ),
    ],
)
def test_tools_may_be_chosen(choice: Any, expected: ToolChoice) -> None:
    asked = job(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
    assert asked.tool_choice == expected
    assert not asked.parallel_tool_calls
    (tool,) = asked.tools
    assert (tool.name, tool.parameters, tool.strict) == ("weather", {"type": "object"}, True)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"type": "json_object"}, '{"type": "object"}'),
        ({"type": "json_schema", "name": "n", "schema": {"type": "string"}, "strict": True}, '{"type":"string"}'),
    ],
)
def test_a_text_format_becomes_a_grammar(form: dict[str, Any], text: str) -> None:
    grammar = job(text={"format": form}).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (GrammarKind.JSON_SCHEMA, text)
    assert job(text={"format": {"type": "text"}}).grammar is None


def test_sampling_and_scheduling_are_as_asked() -> None:
    asked = job(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=3,
        service_tier="flex",
        priority=1,
        deadline=2.5,
        reasoning={"effort": "low"},
        text={"verbosity": "high"},
        seed=3,
        cache_prompt=False,
    )
    params = asked.params
    assert (params.max_tokens, params.temperature, params.top_p, params.logprobs, params.seed) == (7, 0.5, 0.9, 3, 3)
    assert (asked.priority, asked.deadline) == (-9, 2.5)
    assert not asked.cache_prompt
    assert asked.template_kwargs == {"verbosity": "high", "reasoning_effort": "low"}


def test_log_probabilities_come_where_they_are_included() -> None:
    assert job(include=["message.output_text.logprobs"]).params.logprobs == 0
    assert job(include=["reasoning.encrypted_content"]).params.logprobs is None


def test_breakpoints_and_lifetimes_pin() -> None:
    part = {"type": "input_text", "text": "long", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    items = [
        {"role": "user", "content": [part]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    assert job(input=items, instructions="i").pins == [Pin(2, 43_200.0)]
    assert job(prompt_cache_options={"ttl": "30m"}).pins == [Pin(1, 1800.0)]
    assert job(prompt_cache_retention="24h").pins == [Pin(1, 86_400.0)]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"store": True}, "store", "nothing is stored"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not supported"),
        ({"conversation": "c"}, "conversation", "not supported"),
        ({"background": True}, "background", "nothing is stored"),
        ({"truncation": "auto"}, "truncation", "must be 'disabled'"),
        ({"include": ["file_search_call.results"]}, "include", "may hold"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be 'function'"),
        ({"tools": [{"type": "web_search", "name": "x"}]}, "tools[0].type", "must be 'function'"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "two tools named"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [WEATHER]}, "tool_choice", "not among"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "must be message"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
            "must be input_text, input_image",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "input[0].content[0].file_id",
            "nothing is stored",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[0].call_id",
            "no function_call",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"stream_options": {}}, "stream_options", "for streams"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "is required"),
        ({"temperature": 1000.0}, "temperature", "between"),
        ({"colour": 1}, "colour", "not known"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises((ProblemError, InvalidRequestError), match=words) as caught:
        job(**fields)
    assert problem_of(caught.value).param == param


def test_the_response_echoes_what_was_asked() -> None:
    body = request(
        instructions="i", metadata={"a": "b"}, tools=[WEATHER], tool_choice="auto", text={"verbosity": "low"}, user="u"
    )
    echoed = opening(body, "resp_1", "m", 5)
    assert echoed["metadata"] == {"a": "b"}
    assert echoed["tools"] == [{**WEATHER, "description": None}]
    assert echoed["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert (echoed["id"], echoed["status"], echoed["store"], echoed["user"]) == ("resp_1", "in_progress", False, "u")
