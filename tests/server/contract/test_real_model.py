"""The official clients against the whole server with SmolLM2."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from tests.server.contract.conftest import Real

pytestmark = pytest.mark.model

GREEDY: Any = {"extra_body": {"temperature": 0}}
"""The current anthropic client has no parameter for it."""
USER: Any = {"role": "user", "content": "What is the capital of France? Answer in one word."}


def test_a_chat_is_the_same_whole_streamed_and_asynchronous(real: Real) -> None:
    client = real.openai()
    asked: Any = {"model": real.model, "messages": [USER], "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert whole.usage is not None
    assert whole.choices[0].message.content
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    async def main() -> str | None:
        async with real.async_openai() as client:
            answer = await client.chat.completions.create(**asked)
            content: str | None = answer.choices[0].message.content
            return content

    assert asyncio.run(main()) == text


def test_all_three_apis_give_one_answer(real: Real) -> None:
    asked: Any = {"model": real.model, "temperature": 0}
    client = real.openai()
    chat = client.chat.completions.create(**asked, messages=[USER], max_tokens=8)
    response = client.responses.create(**asked, input=USER["content"], max_output_tokens=8)
    message = real.anthropic().messages.create(model=real.model, messages=[USER], max_tokens=8, **GREEDY)
    assert chat.choices[0].message.content == response.output_text == message.content[0].text
    assert chat.usage is not None
    assert response.usage is not None
    usage = message.usage
    prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert chat.usage.prompt_tokens == response.usage.input_tokens == prompt
    counted = real.anthropic().messages.count_tokens(model=real.model, messages=[USER])
    assert counted.input_tokens == prompt
    assert usage.cache_read_input_tokens


def test_a_response_is_the_same_streamed(real: Real) -> None:
    client = real.openai()
    asked: Any = {"model": real.model, "input": "Count to three.", "max_output_tokens": 12, "temperature": 0}
    client.responses.create(**asked)  # both that are compared find their prompt in the cache, and round alike
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert whole.status in ("completed", "incomplete")


def test_a_message_is_the_same_streamed(real: Real) -> None:
    asked: Any = {"model": real.model, "messages": [USER], "max_tokens": 12, "system": "Be brief.", **GREEDY}
    client = real.anthropic()
    client.messages.create(**asked)  # as above
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().stop_reason == whole.stop_reason
    assert text == whole.content[0].text


def test_a_stop_sequence_ends_a_message_and_is_told(real: Real) -> None:
    asked: Any = {"model": real.model, "messages": [USER], "max_tokens": 12, **GREEDY}
    client = real.anthropic()
    free = client.messages.create(**asked).content[0].text
    stop = free[3:5]
    message = client.messages.create(**asked, stop_sequences=["never said", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == free[: free.index(stop)]


def test_text_is_completed(real: Real) -> None:
    completion = real.openai().completions.create(model=real.model, prompt="One, two,", max_tokens=4, temperature=0)
    assert completion.choices[0].text
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 4


def test_models_are_listed_and_found(real: Real) -> None:
    client = real.openai()
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    assert client.models.retrieve(real.model).id == model.id


def test_errors_are_the_clients_own_classes(real: Real) -> None:
    long: Any = {"role": "user", "content": "word " * 4000}
    with pytest.raises(openai.BadRequestError, match="2048") as refused:
        real.openai().chat.completions.create(model=real.model, messages=[long], stream=True)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="2048"):
        real.openai().responses.create(model=real.model, input=long["content"])
    with pytest.raises(anthropic.BadRequestError, match="2048"):
        real.anthropic().messages.create(model=real.model, messages=[long], max_tokens=5)
    with pytest.raises(openai.AuthenticationError):
        real.openai("a-wrong-key").models.list()
    with pytest.raises(openai.NotFoundError):
        real.openai().completions.create(model="nobody", prompt="a")


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_case_x1_who_leaves_a_stream_ends_its_request(real: Real, api: str) -> None:
    asked: Any = {"model": real.model, "stream": True}
    extra: Any = {"extra_body": {"ignore_eos": True}}
    stream: Any
    match api:
        case "chat":
            stream = real.openai().chat.completions.create(**asked, messages=[USER], max_tokens=1500, **extra)
        case "responses":
            stream = real.openai().responses.create(**asked, input="hello", max_output_tokens=1500, **extra)
        case _:
            stream = real.anthropic().messages.create(**asked, messages=[USER], max_tokens=1500, **extra)
    for _ in range(6):
        next(iter(stream))
    stream.close()
    real.assert_idle()


def test_a_client_that_gives_up_ends_its_request(real: Real) -> None:
    client = real.openai().with_options(timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        client.responses.create(
            model=real.model, input="hello", max_output_tokens=1900, extra_body={"ignore_eos": True}
        )
    real.assert_idle()


def test_an_answer_that_takes_longer_than_was_allowed_is_a_timeout(real: Real) -> None:
    body = {"ignore_eos": True, "timeout": 0.2}
    with pytest.raises(openai.APIStatusError) as refused:
        real.openai().responses.create(model=real.model, input="hello", max_output_tokens=1900, extra_body=body)
    assert refused.value.status_code == 408
    real.assert_idle()
