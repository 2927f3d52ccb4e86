"""Calls and structured answers that a grammar forces out of SmolLM2, read by the official clients."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.server.contract.conftest import Real

pytestmark = pytest.mark.model

USER: Any = {"role": "user", "content": "What is the weather in Bern?"}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
OTHER_TOOL: Any = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}


class City(BaseModel):
    name: str = Field(max_length=12)
    people: int = Field(ge=0, le=99)


class Place(BaseModel):
    """Without bounds: Anthropic's client does not send those, so that nothing could keep to them."""

    name: Literal["Bern", "Rome"]


def test_a_required_call_is_made_with_arguments_that_fit(real: Real) -> None:
    asked: Any = {"model": real.model, "messages": [USER], "tools": [CHAT_TOOL], "max_tokens": 80, "temperature": 0}
    client = real.openai()
    whole = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False)
    (choice,) = whole.choices
    calls: Any = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert [
        (call.function.name, json.loads(call.function.arguments)["city"] in ("Bern", "Rome")) for call in calls
    ] == [("weather", True)]
    answer = client.chat.completions.create(
        **(asked | {"messages": [USER, choice.message, _result(calls[0].id)], "max_tokens": 8}), tool_choice="none"
    )
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


def _result(call_id: str) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": "rain"}


def test_a_named_tool_is_the_one_that_is_called_in_streams_too(real: Real) -> None:
    client = real.openai()
    named: Any = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(
        model=real.model,
        messages=[USER],
        tools=[OTHER_TOOL, CHAT_TOOL],
        tool_choice=named,
        parallel_tool_calls=False,
        max_tokens=80,
    ) as stream:
        for _ in stream:
            pass
        calls: Any = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["weather"]
    assert json.loads(calls[0].function.arguments)["city"] in ("Bern", "Rome")


def test_responses_call_and_are_parsed(real: Real) -> None:
    client = real.openai()
    tool: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    response = client.responses.create(
        model=real.model, input="Weather?", tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in ("Bern", "Rome")
    parsed = client.responses.parse(model=real.model, input="A city?", text_format=City, max_output_tokens=60)
    assert isinstance(parsed.output_parsed, City)


def test_chats_are_parsed(real: Real) -> None:
    parsed = real.openai().chat.completions.parse(
        model=real.model, messages=[{"role": "user", "content": "A city?"}], response_format=City, max_tokens=60
    )
    assert isinstance(parsed.choices[0].message.parsed, City)


def test_messages_call_and_are_parsed(real: Real) -> None:
    client = real.anthropic()
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    asked: Any = {"model": real.model, "max_tokens": 80, "messages": [USER]}
    message = client.messages.create(
        **asked, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.input["city"] in ("Bern", "Rome")
    with client.messages.stream(**asked, tools=[tool], tool_choice={"type": "tool", "name": "weather"}) as stream:
        assert any(block.type == "tool_use" for block in stream.get_final_message().content)
    assert isinstance(client.messages.parse(**asked, output_format=Place).parsed_output, Place)
