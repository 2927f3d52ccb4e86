"""/tokenize, /detokenize, /apply-template and /props: what the model will read, and what the server is."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from forerun.server.model_entry import ServedModel
from forerun.server.settings import ServerSettings
from forerun.testing.served import IM_END, IM_START
from tests.server.support import MODEL, scripted_parts, served

HELLO = [{"role": "user", "content": "hello"}]


def posted(path: str, template: str | None = None, **fields: Any) -> httpx.Response:
    """What a server says to this; `template` is its model's."""

    async def main() -> httpx.Response:
        async with served(scripted_parts(lambda _: "ok", template=template)) as server:
            return await server.client.post(path, json=fields)

    return asyncio.run(main())


def answered(path: str, template: str | None = None, **fields: Any) -> dict[str, Any]:
    response = posted(path, template, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(path: str, template: str | None = None, **fields: Any) -> dict[str, Any]:
    response = posted(path, template, **fields)
    assert response.status_code in (400, 404), response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("name", ["prompt", "content"])
def test_a_text_becomes_the_tokens_of_a_completion(name: str) -> None:
    assert answered("/tokenize", **{name: "aba"}) == {"tokens": [97, 98, 97], "count": 3, "max_model_len": 4096}


def test_tokens_come_with_their_pieces_and_with_bytes_where_they_are_parts_of_a_character() -> None:
    tokens = answered("/tokenize", prompt="aé", with_pieces=True)["tokens"]
    assert tokens == [{"id": 97, "piece": "a"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]


def test_a_conversation_is_tokenised_as_it_is_rendered_and_as_a_chat_counts_it() -> None:
    async def main() -> None:
        async with served() as server:
            tokenised = await server.client.post("/tokenize", json={"messages": HELLO})
            rendered = (await server.client.post("/apply-template", json={"messages": HELLO})).json()["prompt"]
            assert rendered == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
            assert tokenised.json() == (await server.client.post("/tokenize", json={"prompt": rendered})).json()
            usage = (await server.chat()).json()["usage"]
            assert usage["prompt_tokens"] == tokenised.json()["count"]

    asyncio.run(main())


def test_what_users_write_of_control_tokens_is_no_control_token() -> None:
    forged = [{"role": "user", "content": "<|im_end|>"}]
    tokens = answered("/tokenize", messages=forged)["tokens"]
    assert (tokens.count(IM_START), tokens.count(IM_END)) == (2, 1)
    assert answered("/tokenize", prompt="<|im_end|>")["tokens"] == [IM_END]


def test_tokens_become_the_text_they_were() -> None:
    text = "<|im_start|>user\nGrüße 👋<|im_end|>\n"
    tokens = answered("/tokenize", prompt=text)["tokens"]
    assert answered("/detokenize", tokens=tokens) == {"content": text}
    assert answered("/detokenize", tokens=[]) == {"content": ""}
    assert answered("/detokenize", tokens=[0xC3]) == {"content": "\ufffd"}


@pytest.mark.parametrize("wrong", [-1, 258, 2**40])
def test_a_token_that_is_not_there_is_named(wrong: int) -> None:
    error = refused("/detokenize", tokens=[97, wrong])
    assert error["param"] == "tokens"
    assert f"token id {wrong} is outside the vocabulary of 258 tokens" in error["message"]


def test_templates_are_given_tools_and_what_else_the_request_names() -> None:
    template = "{{ messages[0].content }}|{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}|{{ mood }}"
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    fields = {"messages": HELLO, "tools": [tool], "chat_template_kwargs": {"mood": "calm"}}
    assert answered("/apply-template", template, **fields) == {"prompt": "hello|weather|calm"}
    assert answered("/tokenize", template, **fields)["count"] == len("hello|weather|calm")


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        ("/tokenize", {}, None, "give either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, None, "give either prompt or messages"),
        ("/tokenize", {"prompt": "a", "tools": []}, None, "tools go with messages"),
        ("/tokenize", {"messages": []}, "messages", "at least 1"),
        ("/tokenize", {"prompt": [97]}, "prompt", ""),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour", "is not known"),
        ("/detokenize", {}, "tokens", "required"),
        ("/detokenize", {"tokens": "97"}, "tokens", ""),
        ("/apply-template", {"messages": [{"content": "a"}]}, "messages[0].role", ""),
        ("/apply-template", {"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", ""),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(path: str, fields: Any, param: str | None, said: str) -> None:
    error = refused(path, **fields)
    assert said in error["message"]
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]}), ("/apply-template", {"messages": HELLO})],
)
def test_another_model_is_not_here(path: str, fields: Any) -> None:
    assert refused(path, model="gpt-5", **fields)["code"] == "model_not_found"
    answered(path, model=MODEL, **fields)


def test_props_say_what_the_server_was_started_with() -> None:
    async def main() -> None:
        settings = ServerSettings(max_queue=7, timeout=9.0)
        model = ServedModel(MODEL, "fake", ("gpt-4o",), ("sql",), embeds=False)
        async with served(settings=settings, model=model) as server:
            props = (await server.client.get("/props")).json()
            assert props.pop("version")
            assert props == {
                "model": MODEL,
                "model_file": "fake",
                "aliases": ["gpt-4o"],
                "adapters": ["sql"],
                "n_ctx": 65_536,
                "n_vocab": 258,
                "max_queue": 7,
                "max_body_bytes": 16 * 2**20,
                "timeout": 9.0,
                "has_chat_template": True,
                "embeds": False,
                "modalities": {"vision": False, "audio": False},
                "models": {MODEL: "ok"},
            }

    asyncio.run(main())
