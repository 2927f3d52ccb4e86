"""The official openai client reads what the server writes: answers, streams and errors, on scripted answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from forerun.chat.pieces import Content
from forerun.core.request import TokenLogprobs
from forerun.errors import EngineClosedError, InvalidRequestError, OverloadedError
from forerun.server.jobs import ChatJob
from tests.server.contract.conftest import Scripted
from tests.server.scripted import CALLS, CUT_CALL, GREETING, THOUGHT, ended, said

USER: Any = {"role": "user", "content": "hello"}


class City(BaseModel):
    name: str
    people: int


JSON_ANSWER = (said(Content('{"name": "Bern", ')), said(Content('"people": 134000}')), ended())


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
RESPONSES_TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


def test_responses_are_created_whole(scripted: Scripted) -> None:
    scripted.service.script = GREETING
    response = scripted.openai().responses.create(model=scripted.model, input="hello", metadata={"a": "b"})
    assert response.output_text == "Good day"
    assert (response.status, response.metadata) == ("completed", {"a": "b"})
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (11, 4)


def test_responses_are_streamed_as_events_that_join_to_the_whole(scripted: Scripted) -> None:
    scripted.service.script = THOUGHT
    client = scripted.openai()
    whole = client.responses.create(model=scripted.model, input="hello")
    events = list(client.responses.create(model=scripted.model, input="hello", stream=True))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output == whole.output
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Yes"
    with client.responses.stream(model=scripted.model, input="hello") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == whole.output_text


def test_responses_are_parsed_into_pydantic_models(scripted: Scripted) -> None:
    scripted.service.script = JSON_ANSWER
    client = scripted.openai()
    parsed = client.responses.parse(model=scripted.model, input="hello", text_format=City)
    assert parsed.output_parsed == City(name="Bern", people=134000)
    job = scripted.service.jobs[0]
    assert isinstance(job, ChatJob)
    assert job.grammar is not None
    assert json.loads(job.grammar.text)["required"] == ["name", "people"]
    with client.responses.stream(model=scripted.model, input="hello", text_format=City) as stream:
        assert stream.get_final_response().output_parsed == City(name="Bern", people=134000)


def test_calls_in_a_response_can_be_answered(scripted: Scripted) -> None:
    scripted.service.script = CALLS
    client = scripted.openai()
    first = client.responses.create(model=scripted.model, input="hello", tools=[RESPONSES_TOOL])
    calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Bern"}, {"city": "Rome"}]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    scripted.service.script = GREETING
    passed_back: Any = [USER, *first.output, *outputs]
    answer = client.responses.create(model=scripted.model, input=passed_back, tools=[RESPONSES_TOOL])
    assert answer.output_text == "Good day"
    job = scripted.service.jobs[-1]
    assert isinstance(job, ChatJob)
    assert [message["role"] for message in job.messages] == ["user", "assistant", "tool", "tool"]


def test_a_response_that_was_cut_off_is_incomplete(scripted: Scripted) -> None:
    scripted.service.script = CUT_CALL
    response = scripted.openai().responses.create(model=scripted.model, input="hello", max_output_tokens=5)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_log_probabilities_of_a_response_name_their_tokens(scripted: Scripted) -> None:
    scripted.service.script = (said(Content("A"), logprobs=[TokenLogprobs(65, -0.5, ((65, -0.5),))]), ended())
    response = scripted.openai().responses.create(
        model=scripted.model, input="hello", include=["message.output_text.logprobs"], top_logprobs=1
    )
    (item,) = response.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert (part.logprobs[0].token, part.logprobs[0].bytes) == ("A", [65])


def test_a_response_that_fails_on_the_way_ends_as_failed(scripted: Scripted) -> None:
    scripted.service.script = (GREETING[0], EngineClosedError("the engine ended"))
    client = scripted.openai()
    events = list(client.responses.create(model=scripted.model, input="hello", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert "the engine ended" in events[-1].response.error.message
    with pytest.raises(openai.InternalServerError, match="the engine ended"):
        client.responses.create(model=scripted.model, input="hello")


def test_chats_are_created_and_streamed(scripted: Scripted) -> None:
    scripted.service.script = CALLS
    client = scripted.openai()
    whole = client.chat.completions.create(model=scripted.model, messages=[USER], tools=[TOOL])
    (choice,) = whole.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see. ")
    with client.chat.completions.stream(model=scripted.model, messages=[USER], tools=[TOOL]) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices
    assert streamed.finish_reason == "tool_calls"
    calls: list[Any] = [choice.message.tool_calls, streamed.message.tool_calls]
    whole_arguments, streamed_arguments = ([call.function.arguments for call in own] for own in calls)
    assert whole_arguments == streamed_arguments == ['{"city": "Bern"}', '{"city": "Rome"}']


def test_chats_are_parsed_into_pydantic_models(scripted: Scripted) -> None:
    scripted.service.script = JSON_ANSWER
    parsed = scripted.openai().chat.completions.parse(model=scripted.model, messages=[USER], response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Bern", people=134000)


def test_raw_responses_have_their_headers(scripted: Scripted) -> None:
    scripted.service.script = GREETING
    raw = scripted.openai().chat.completions.with_raw_response.create(model=scripted.model, messages=[USER])
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == "Good day"


def test_the_asynchronous_client_reads_the_same(scripted: Scripted) -> None:
    scripted.service.script = GREETING

    async def main() -> None:
        async with scripted.async_openai() as client:
            whole = await client.responses.create(model=scripted.model, input="hello")
            stream = await client.responses.create(model=scripted.model, input="hello", stream=True)
            events = [event async for event in stream]
            assert events[-1].type == "response.completed"
            assert events[-1].response.output_text == whole.output_text == "Good day"
            chat = await client.chat.completions.create(model=scripted.model, messages=[USER], stream=True)
            chunks: list[Any] = [chunk async for chunk in chat]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Good day"

    asyncio.run(main())


def test_models_are_listed_and_found(scripted: Scripted) -> None:
    client = scripted.openai()
    assert scripted.model in [model.id for model in client.models.list()]
    assert client.models.retrieve(scripted.model).id == scripted.model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_errors_are_the_clients_own_classes(scripted: Scripted) -> None:
    client = scripted.openai()
    with pytest.raises(openai.AuthenticationError):
        scripted.openai("a-wrong-key").responses.create(model=scripted.model, input="hello")
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="nobody", input="hello")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=scripted.model, input="hello", store=True)
    assert refused.value.param == "store"


def test_errors_of_the_service_name_fields_as_this_api_does(scripted: Scripted) -> None:
    client = scripted.openai()
    scripted.service.refusal = InvalidRequestError("messages[0]", "is not to be had")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=scripted.model, input="hello")
    assert refused.value.param == "input[0]"


def test_overload_is_told_before_a_stream_begins(scripted: Scripted) -> None:
    scripted.service.refusal = OverloadedError("too many are open", 3.2)
    with pytest.raises(openai.APIStatusError) as refused:
        scripted.openai().responses.create(model=scripted.model, input="hello", stream=True)
    assert refused.value.status_code in (429, 503)
    assert refused.value.response.headers["retry-after"] == "4"
