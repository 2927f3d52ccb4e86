"""The official anthropic client reads what the server writes: shapes of answers, streams and errors, on scripted
answers."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import ToolUseBlock
from pydantic import BaseModel

from forerun.chat.pieces import Content
from forerun.errors import EngineClosedError, InvalidRequestError, OverloadedError
from forerun.server.jobs import ChatJob
from tests.server.contract.conftest import KEY, Scripted
from tests.server.scripted import CALLS, CUT_CALL, GREETING, PROMPT_TOKENS, THOUGHT, ended, said

USER: Any = {"role": "user", "content": "hello"}
TOOL: Any = {"name": "weather", "input_schema": {"type": "object"}}


class City(BaseModel):
    name: str
    people: int


def plain(block: Any) -> dict[str, Any]:
    """A block without what only the parsing client adds."""
    kept: dict[str, Any] = block.model_dump(exclude={"parsed_output"}, exclude_none=True)
    return kept


def test_messages_are_created_whole(scripted: Scripted) -> None:
    scripted.service.script = GREETING
    message = scripted.anthropic().messages.create(model=scripted.model, max_tokens=9, messages=[USER])
    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason, message.model) == ("Good day", "end_turn", scripted.model)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (7, 4)


@pytest.mark.parametrize("script", [GREETING, THOUGHT, CALLS, CUT_CALL])
def test_a_stream_joins_to_the_whole_message(scripted: Scripted, script: Any) -> None:
    scripted.service.script = script
    client = scripted.anthropic()
    whole = client.messages.create(model=scripted.model, max_tokens=5, messages=[USER], tools=[TOOL])
    with client.messages.stream(model=scripted.model, max_tokens=5, messages=[USER], tools=[TOOL]) as stream:
        streamed = stream.get_final_message()
    assert [plain(block) for block in streamed.content] == [plain(block) for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_calls_can_be_answered(scripted: Scripted) -> None:
    scripted.service.script = CALLS
    client = scripted.anthropic()
    first = client.messages.create(model=scripted.model, max_tokens=9, messages=[USER], tools=[TOOL])
    assert first.stop_reason == "tool_use"
    calls = [block for block in first.content if isinstance(block, ToolUseBlock)]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"} for call in calls]
    scripted.service.script = GREETING
    turns: Any = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    client.messages.create(model=scripted.model, max_tokens=9, messages=turns, tools=[TOOL])
    job = scripted.service.jobs[-1]
    assert isinstance(job, ChatJob)
    assert [message["role"] for message in job.messages] == ["user", "assistant", "tool", "tool"]


def test_messages_are_parsed_into_pydantic_models(scripted: Scripted) -> None:
    scripted.service.script = (said(Content('{"name": "Bern", "people": 134000}')), ended())
    message = scripted.anthropic().messages.parse(
        model=scripted.model, max_tokens=9, messages=[USER], output_format=City
    )
    assert message.parsed_output == City(name="Bern", people=134000)
    job = scripted.service.jobs[0]
    assert isinstance(job, ChatJob)
    assert job.grammar is not None


def test_tokens_are_counted(scripted: Scripted) -> None:
    counted = scripted.anthropic().messages.count_tokens(model=scripted.model, messages=[USER], tools=[TOOL])
    assert counted.input_tokens == PROMPT_TOKENS


def test_the_beta_client_and_its_headers_are_understood(scripted: Scripted) -> None:
    scripted.service.script = GREETING
    message = scripted.anthropic().beta.messages.create(
        model=scripted.model,
        max_tokens=9,
        messages=[USER],
        betas=["interleaved-thinking-2025-05-14"],
        metadata={"user_id": "u"},
        system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    )
    assert message.stop_reason == "end_turn"


def test_the_asynchronous_client_reads_the_same(scripted: Scripted) -> None:
    scripted.service.script = GREETING

    async def main() -> None:
        async with (
            scripted.async_anthropic() as client,
            client.messages.stream(model=scripted.model, max_tokens=9, messages=[USER]) as stream,
        ):
            assert "".join([text async for text in stream.text_stream]) == "Good day"

    asyncio.run(main())


def test_errors_are_the_clients_own_classes(scripted: Scripted) -> None:
    client = scripted.anthropic()
    with pytest.raises(anthropic.AuthenticationError):
        scripted.anthropic("a-wrong-key").messages.create(model=scripted.model, max_tokens=9, messages=[USER])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", max_tokens=9, messages=[USER])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model=scripted.model, max_tokens=0, messages=[USER])
    scripted.service.refusal = InvalidRequestError("stop", "is wrong")
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences: is wrong") as refused:
        client.messages.create(model=scripted.model, max_tokens=9, messages=[USER])
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    scripted.service.refusal = OverloadedError("too many are open", 3.2)
    with pytest.raises(anthropic.APIStatusError) as overloaded:
        client.messages.create(model=scripted.model, max_tokens=9, messages=[USER], stream=True)
    assert overloaded.value.response.headers["retry-after"] == "4"


def test_an_answer_that_fails_on_the_way_ends_with_an_error(scripted: Scripted) -> None:
    scripted.service.script = (GREETING[0], EngineClosedError("the engine ended"))
    client = scripted.anthropic()
    stream = client.messages.create(model=scripted.model, max_tokens=9, messages=[USER], stream=True)
    with pytest.raises(anthropic.APIStatusError, match="the engine ended"):
        list(stream)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "scripted"}', b'{"messages": "\xff"}'])
def test_case_a2_a_broken_body_is_an_error_of_anthropics_shape(scripted: Scripted, body: bytes) -> None:
    response = httpx.post(f"{scripted.url}/v1/messages", content=body, headers={"x-api-key": KEY})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
