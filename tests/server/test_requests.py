"""What requests may hold: cases A1, A2, A4, A5 and A6, and fields that are refused by name."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from forerun.server.body import parse_json, validated
from forerun.server.json_shape import JsonShape, json_shape
from forerun.server.model_entry import ServedModel
from forerun.server.problems import ProblemError
from forerun.server.settings import ServerSettings
from forerun.server.wire.chat import ChatRequest
from tests.server.support import HELLO_BODY, MODEL, ServerUnderTest, events_of, scripted_parts, served, streamed_content

HELLO = [{"role": "user", "content": "hello"}]


def assert_refused(response: httpx.Response, param: str | None = None, status: int = 400) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] == param, error
        assert param in error["message"]


async def post(server: ServerUnderTest, content: bytes) -> httpx.Response:
    return await server.client.post("/v1/chat/completions", content=content)


def test_case_a1_max_tokens_is_kept_to_the_token() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "abcdef")) as server:
            for limit, text, reason in ((1, "a", "length"), (2, "ab", "length"), (7, "abcdef", "stop")):
                answer = (await server.chat(max_tokens=limit)).json()
                (choice,) = answer["choices"]
                assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
                assert answer["usage"]["completion_tokens"] == limit
            for unlimited in ({}, {"max_tokens": None}):
                body = {"model": MODEL, "messages": HELLO, **unlimited}
                answer = (await server.client.post("/v1/chat/completions", json=body)).json()
                assert answer["choices"][0]["message"]["content"] == "abcdef"
                assert answer["usage"]["completion_tokens"] == 7
            answer = (await server.complete("xy", max_tokens=2)).json()
            assert answer["usage"]["completion_tokens"] == 2

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [0, -1, 2**31, 2**70, 1.5, "5", True, [], {}])
def test_case_a1_a_wrong_max_tokens_is_refused_by_name(wrong: Any) -> None:
    async def main() -> None:
        async with served() as server:
            for stream in (False, True):
                assert_refused(await server.chat(max_tokens=wrong, stream=stream), "max_tokens")
                assert_refused(await server.complete(max_tokens=wrong, stream=stream), "max_tokens")
            assert_refused(await server.chat(max_completion_tokens=wrong), "max_completion_tokens")
            assert (await server.chat()).status_code == 200

    asyncio.run(main())


def test_case_a2_an_empty_or_broken_request_is_refused_and_the_next_one_answered() -> None:
    async def main() -> None:
        async with served() as server:
            prompts: list[Any] = ["", [], [[]], ["a", ""], [[1], []]]
            for prompt in prompts:
                response = await server.complete(prompt)
                assert_refused(response)
                assert response.json()["error"]["param"].startswith("prompt")
                assert (await server.complete()).status_code == 200
            conversations: list[Any] = [
                [],
                None,
                [None],
                "x",
                [[]],
                [{}],
                [{"role": "user", "content": 5}],
                [{"role": "king"}],
            ]
            for messages in conversations:
                response = await server.chat(messages=messages)
                assert_refused(response)
                assert response.json()["error"]["param"].startswith("messages")
                assert (await server.chat()).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    "content",
    [b"", b"  ", b"{", b"[]", b"5", b"null", b"nonsense", b'{"model": NaN}', b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}',
     b"[" * 200_000, b'{"a":' * 200_000, b'{"a": "' + b'\\"' * 200_000, b"\x00", b'{"a": 1e999}'],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_case_a2_a_body_that_is_no_json_object_is_refused(content: bytes) -> None:
    async def main() -> None:
        async with served() as server:
            assert_refused(await post(server, content))

    asyncio.run(main())


def test_case_a2_an_unknown_model_is_not_found_and_the_known_names_are_told() -> None:
    async def main() -> None:
        async with served(model=ServedModel(MODEL, "fake", ("gpt-4o",), embeds=False)) as server:
            for response in (await server.chat(model="gpt-9"), await server.complete(model="gpt-9")):
                assert_refused(response, status=404)
                error = response.json()["error"]
                assert (error["code"], error["param"]) == ("model_not_found", "model")
                assert "'fake'" in error["message"]
                assert "'gpt-4o'" in error["message"]
            for name in (MODEL, server.engine.model_name, "gpt-4o"):
                assert (await server.chat(model=name)).status_code == 200
            assert_refused(await server.chat(model=None), "model")

    asyncio.run(main())


def test_case_a4_a_token_id_outside_the_vocabulary_is_refused_while_another_stream_goes_on() -> None:
    async def main() -> None:
        async with served() as server:
            n_vocab = server.engine.tokenizer.size
            other = asyncio.create_task(server.chat(stream=True, max_tokens=300, ignore_eos=True, temperature=0))
            for stream in (False, True):
                for key in ("-1", str(n_vocab), "99999999", "abc", "1.5", "", "9" * 50):
                    assert_refused(await server.chat(logit_bias={key: 1}, stream=stream), "logit_bias")
                for value in (1e9, -1e9):
                    assert_refused(await server.chat(logit_bias={"1": value}, stream=stream), "logit_bias")
                for prompt in ([n_vocab], [-1], [2**40], [1.5], [[0], [n_vocab]]):
                    assert_refused(await server.complete(prompt, stream=stream))
                for token in (n_vocab, -1, 2**40):
                    assert_refused(await server.chat(stop_token_ids=[token], stream=stream), "stop_token_ids")
            events = events_of((await other).text)
            assert events[-1] == "[DONE]"
            assert len(streamed_content(events)) == 300

    asyncio.run(main())


def test_case_a4_a_bias_of_minus_100_bans_the_token() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "aaa")) as server:
            usual = (await server.chat(temperature=0)).json()["choices"][0]["message"]["content"]
            assert usual == "aaa"
            banned = (await server.chat(temperature=0, logit_bias={str(ord("a")): -100})).json()
            assert "a" not in banned["choices"][0]["message"]["content"]

    asyncio.run(main())


def test_case_a5_stop_is_a_string_or_a_list_and_an_empty_list_keeps_the_end_of_turn() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "one two three", n_ctx=512)) as server:
            for stop, text in (
                ("two", "one "),
                (["two"], "one "),
                (["three", "two"], "one "),
                (None, None),
                ([], None),
            ):
                for stream in (False, True):
                    response = await server.chat(stop=stop, stream=stream, max_tokens=30)
                    assert response.status_code == 200
                    events = events_of(response.text)
                    said = streamed_content(events) if stream else response.json()["choices"][0]["message"]["content"]
                    assert said == (text or "one two three")
            stops: list[Any] = [5, {}, [1], True, [None]]
            for wrong in stops:
                response = await server.chat(stop=wrong)
                assert_refused(response)
                assert response.json()["error"]["param"].startswith("stop")
                assert_refused(await server.complete(stop=wrong))
            for empty in ("", [""]):
                assert_refused(await server.chat(stop=empty), "stop")

    asyncio.run(main())


def test_case_a6_a_tool_round_trip_may_have_content_null_absent_empty_or_in_parts() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    forms: list[dict[str, Any]] = [{"content": None}, {}, {"content": ""}, {"content": [{"type": "text", "text": ""}]}]

    async def main() -> None:
        async with served() as server:
            counts = set()
            for form in forms:
                messages = [
                    {"role": "user", **form},
                    {"role": "assistant", "tool_calls": [call], **form},
                    {"role": "tool", "tool_call_id": "call_1", **form},
                ]
                response = await server.chat(messages=messages)
                assert response.status_code == 200, response.text
                counts.add(response.json()["usage"]["prompt_tokens"])
            assert len(counts) == 1
            text = "It\nsnows"
            parts = [{"type": "text", "text": "It"}, {"type": "text", "text": "snows"}]
            for role in ("user", "system", "assistant", "tool"):
                one, other = [
                    (await server.chat(messages=[{"role": role, "content": content}])).json()["usage"]["prompt_tokens"]
                    for content in (text, parts)
                ]
                assert one == other

    asyncio.run(main())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "alloy"}),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("web_search_options", {}),
        ("moderation", {"model": "m"}),
        ("modalities", ["audio"]),
        ("store", True),
        ("service_tier", "scale"),
        ("n_predict", 5),
        ("Foo", 1),
        ("temprature", 0.5),
    ],
)
def test_a_field_that_is_not_honoured_is_refused_by_name(field: str, value: Any) -> None:
    async def main() -> None:
        async with served() as server:
            assert_refused(await server.chat(**{field: value}), field)

    asyncio.run(main())


def test_fields_that_have_no_effect_and_nulls_are_taken() -> None:
    harmless: dict[str, Any] = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "prompt_cache_key": "k", "safety_identifier": "x",
        "modalities": ["text"], "audio": None, "functions": None, "response_format": {"type": "text"},
        "service_tier": "auto", "tools": None, "seed": None, "logit_bias": None, "logprobs": False,
    }  # fmt: skip

    async def main() -> None:
        async with served() as server:
            response = await server.chat(**harmless)
            assert response.status_code == 200, response.text

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"timeout": 0}, "timeout"),
        ({"adapters": {"sql": 1.0}}, "adapters"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
         "messages[0].content[0].image_url"),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other_or_are_out_of_range_are_refused(fields: dict[str, Any], param: str) -> None:
    async def main() -> None:
        async with served() as server:
            for stream in (False, True):
                streams: dict[str, Any] = {"stream": True} if stream and "stream_options" not in fields else {}
                assert_refused(await server.chat(**fields, **streams), param)

    asyncio.run(main())


def test_brackets_and_quotes_in_strings_do_not_count_for_the_shape_of_json() -> None:
    assert json_shape(b'{"a": "[[[[\\"[[", "b": [1, {"c": 2}]}') == JsonShape(depth=3, values=3 + 4)
    assert json_shape(b'["\\\\", [[]], "\\\\\\"[[["]') == JsonShape(depth=3, values=3 + 2)
    assert json_shape(b"1") == JsonShape(depth=0, values=0)
    assert parse_json(json.dumps({"a": "{" * 1000}).encode(), max_depth=10, max_values=3) == {"a": "{" * 1000}
    with pytest.raises(ProblemError, match="nested deeper than 10"):
        parse_json(b"[" * 11 + b"]" * 11, max_depth=10, max_values=100)
    with pytest.raises(ProblemError, match=r"has 11 objects, arrays and strings .* this server reads 10"):
        parse_json(b"[" + b'"",' * 9 + b'""]', max_depth=10, max_values=10)


def test_a_prompt_of_token_ids_may_be_longer_than_a_body_has_values() -> None:
    ids = list(range(1000))
    assert parse_json(json.dumps({"prompt": ids}).encode(), max_depth=10, max_values=10) == {"prompt": ids}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("temprature", "temprature: is not known here (did you mean temperature?); GET /docs shows what is"),
        ("max_token", "max_token: is not known here (did you mean max_tokens?); GET /docs shows what is"),
        ("colour", "colour: is not known here; GET /docs shows what is"),
        ("temperature" * 5_000, "is not known here; GET /docs shows what is"),
    ],
)
def test_a_misspelt_field_is_told_what_it_was_probably_to_be(name: str, said: str) -> None:
    with pytest.raises(ProblemError) as caught:
        validated(ChatRequest, {**HELLO_BODY, name: 1})
    assert str(caught.value).endswith(said)
    assert caught.value.problem.code == "unknown_parameter"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [5] * 300_000}, "messages[0]: input should be a valid dictionary"),
        ({"stop": [5] * 300_000}, "stop[0]: input should be a valid string"),
        ({"metadata": {f"k{number}": 1 for number in range(30_000)}}, "the body has 30000 fields that are wrong"),
        ({f"k{number}": 1 for number in range(30_000)}, "the body has 30000 fields that are wrong or not known"),
        ({"temperature": [5] * 300_000}, "temperature: input should be a valid number, got [5, 5, 5"),
        ({f"k{number}": 1 for number in range(300_000)}, "objects, arrays and strings"),
    ],
)  # fmt: skip
def test_a_body_with_very_many_faults_is_refused_by_the_first_of_them(fields: dict[str, Any], said: str) -> None:
    content = json.dumps({**HELLO_BODY, **fields}).encode()
    seen = []

    def read() -> None:
        value = parse_json(content, max_depth=100, max_values=ServerSettings().max_json_values)
        try:
            ChatRequest.model_validate(value)
        except ValidationError as error:
            seen.append(error.error_count())
        validated(ChatRequest, value)

    with pytest.raises(ProblemError) as caught:
        read()
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600
    assert said.startswith("the body has") or sum(seen) <= 3  # nothing walks through the others


def test_a_large_body_does_not_hold_up_the_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slowly(content: bytes, **limits: int) -> Any:
        if len(content) > 100_000:
            began.set()
            assert goes_on.wait(10)
        return parse_json(content, **limits)

    monkeypatch.setattr("forerun.server.body.parse_json", slowly)

    async def main() -> None:
        async with served() as server:
            large = asyncio.create_task(server.chat("x" * 200_000))
            assert await asyncio.to_thread(began.wait, 10)
            assert (await server.chat()).status_code == 200
            goes_on.set()
            assert (await large).status_code == 400

    asyncio.run(main())


@pytest.mark.parametrize("escape", [r"\ud800", r"\uDC00 ", r"\\\udbff!", r"\ud83dx\ude00"])
def test_half_of_a_surrogate_pair_is_named(escape: str) -> None:
    content = f'{{"prompt": "\\ud83d\\ude00 {escape}"}}'.encode()
    half = re.findall(r"\\u\w{4}", escape)[0]
    with pytest.raises(ProblemError, match=re.escape(f"{half} is a lone surrogate")):
        parse_json(content, max_depth=10, max_values=10)
    whole = parse_json(rb'{"a": "\ud83d\ude00 \\ud800"}', max_depth=10, max_values=10)
    assert whole == {"a": "\U0001f600 \\ud800"}
