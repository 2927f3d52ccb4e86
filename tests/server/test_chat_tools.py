"""Tool calls and reasoning: case T5, which tools may be called, what templates are told."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from forerun.chat.prompts import PromptWriter
from forerun.chat.templates import ChatTemplate
from forerun.core.grammar import Grammar
from forerun.errors import InvalidRequestError
from forerun.server.chat_front import template_names
from forerun.testing.served import IM_START
from tests.server.support import CONTROL, events_of, scripted_parts, served, streamed_content

HERMES = (
    "{% if tools %}<tool_call> {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
THINKING = HERMES + "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
TWO_CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome \\"x\\""}}\n</tool_call>'
)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, "", "")


def streamed_calls(events: list[Any]) -> list[dict[str, Any]]:
    """Calls joined from deltas; each delta checked for being a difference."""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else ():
            for delta in choice["delta"].get("tool_calls", ()):
                known = calls.setdefault(delta["index"], {"arguments": ""})
                for name in ("id", "type"):
                    assert (name in delta) == (name not in known)
                assert ("name" in delta["function"]) == ("name" not in known)
                known |= {name: delta[name] for name in ("id", "type") if name in delta}
                known["name"] = delta["function"].get("name", known.get("name"))
                known["arguments"] += delta["function"]["arguments"]
    return [calls[index] for index in sorted(calls)]


def test_case_t5_two_parallel_calls_are_streamed_as_differences_and_equal_the_whole() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: TWO_CALLS, template=HERMES)) as server:
            whole = (await server.chat(tools=[WEATHER, TIME], max_tokens=500)).json()["choices"][0]
            events = events_of((await server.chat(tools=[WEATHER, TIME], max_tokens=500, stream=True)).text)
            streamed = streamed_calls(events)
            assert [json.loads(call["arguments"]) for call in streamed] == [{"city": "Oslo"}, {"city": 'Rome "x"'}]
            assert [(call["name"], call["arguments"]) for call in streamed] == [
                (call["function"]["name"], call["function"]["arguments"]) for call in whole["message"]["tool_calls"]
            ]
            assert len({call["id"] for call in streamed}) == 2
            assert whole["finish_reason"] == "tool_calls"
            assert whole["message"]["content"].strip() == streamed_content(events).strip() == "I look."
            reasons = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
            assert [reason for reason in reasons if reason] == ["tool_calls"]

    asyncio.run(main())


def test_case_t5_a_call_that_is_cut_off_ends_for_its_length() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: TWO_CALLS, template=HERMES)) as server:
            whole = (await server.chat(tools=[WEATHER], max_tokens=70)).json()["choices"][0]
            events = events_of((await server.chat(tools=[WEATHER], max_tokens=70, stream=True)).text)
            assert whole["finish_reason"] == "length"
            assert events[-2]["choices"][0]["finish_reason"] == "length"
            (call,) = streamed_calls(events)
            assert call["arguments"] == whole["message"]["tool_calls"][0]["function"]["arguments"]
            assert call["arguments"].startswith('{"city"')

    asyncio.run(main())


def test_without_tools_or_with_tool_choice_none_nothing_is_taken_for_a_call() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: TWO_CALLS, template=HERMES)) as server:
            without: list[dict[str, Any]] = [{}, {"tools": [WEATHER], "tool_choice": "none"}]
            for fields in without:
                message = (await server.chat(max_tokens=500, **fields)).json()["choices"][0]["message"]
                assert message["content"] == TWO_CALLS
                assert "tool_calls" not in message

    asyncio.run(main())


def test_a_prompt_says_which_tools_there_are() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "", template=HERMES)) as server:
            body = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER]}
            prompt = (await server.client.post("/apply-template", json=body)).json()["prompt"]
            assert '"name": "weather"' in prompt

    asyncio.run(main())


def test_reasoning_is_told_apart_from_the_answer_and_counted() -> None:
    said = "hmm, well</think>\n\nYes."

    async def main() -> None:
        async with served(scripted_parts(lambda _: said, template=THINKING)) as server:
            answer = (await server.chat(max_tokens=100)).json()
            message = answer["choices"][0]["message"]
            assert message["reasoning_content"].strip() == "hmm, well"
            assert message["content"].strip() == "Yes."
            counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            assert len("hmm, well") <= counted < answer["usage"]["completion_tokens"]
            events = events_of((await server.chat(max_tokens=100, stream=True)).text)[:-1]
            deltas = [choice["delta"] for event in events for choice in event["choices"]]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
            assert streamed_content(events) == message["content"]

    asyncio.run(main())


@pytest.mark.parametrize(("effort", "opens"), [("none", False), ("high", True), (None, True)])
def test_reasoning_effort_switches_reasoning_where_the_template_can(effort: str | None, *, opens: bool) -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "x</think>y", template=THINKING)) as server:
            message = (await server.chat(max_tokens=50, reasoning_effort=effort)).json()["choices"][0]["message"]
            assert ("reasoning_content" in message) == opens

    asyncio.run(main())


def test_a_template_that_has_no_use_for_an_effort_is_not_given_one_in_silence() -> None:
    plain, effortful = template("{{ messages }}"), template("{{ reasoning_effort }}{{ verbosity }}")
    assert template_names({"reasoning_effort": "none", "a": 1}, plain) == {"a": 1}
    assert template_names({"reasoning_effort": "xhigh", "verbosity": "low"}, effortful) == {
        "reasoning_effort": "high",
        "verbosity": "low",
    }
    assert template_names({"verbosity": "medium"}, plain) == {}
    for name in ("reasoning_effort", "verbosity"):
        with pytest.raises(InvalidRequestError, match=name):
            template_names({name: "high"}, template("{{ messages.reasoning_effort }} 'verbosity'"))


def test_what_cannot_be_enforced_is_refused_by_name() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "x", template="{{ messages[0].content }}[INST]")) as server:
            schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}}
            response = await server.chat(response_format=schema)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "response_format"

    asyncio.run(main())


def test_markers_that_are_control_tokens_are_part_of_what_is_read() -> None:
    parts = scripted_parts(lambda _: TWO_CALLS.replace("<tool_call>", chr(CONTROL)))
    writer = PromptWriter(template(HERMES), {"<tool_call>": IM_START})

    async def main() -> None:
        async with served(replace(parts, chat_template=writer)) as server:
            message = (await server.chat(tools=[WEATHER], max_tokens=500)).json()["choices"][0]["message"]
            assert message["content"].strip() == "I look."
            assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather", "weather"]

    asyncio.run(main())


class Recorded:
    """Lets every grammar pass, and keeps it."""

    def __init__(self) -> None:
        self.grammars: list[Grammar] = []

    async def check_soon(self, grammar: Grammar, field: str = "grammar") -> None:
        self.grammars.append(grammar)
        raise InvalidRequestError(field, "was seen")


@pytest.mark.parametrize(
    ("choice", "has_answer", "has_calls"),
    [("auto", True, True), ("required", False, True), ("none", True, False)],
)
def test_with_tools_and_a_format_an_answer_is_either_calls_or_fits(
    choice: str, *, has_answer: bool, has_calls: bool
) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "title": "wanted"}}}
    recorded = Recorded()

    async def main() -> None:
        async with served(scripted_parts(lambda _: "x", template=HERMES), grammars=recorded) as server:
            await server.chat(response_format=schema, tools=[WEATHER], tool_choice=choice)
            refused = await server.chat(grammar={"type": "regex", "value": "a"}, tools=[WEATHER])
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "grammar")

    asyncio.run(main())
    (grammar,) = recorded.grammars
    assert ("wanted" in grammar.text, "tool_call" in grammar.text) == (has_answer, has_calls)
