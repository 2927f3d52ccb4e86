"""Streams: cases T1, T2, T3 and T5, what they begin and end with, and how they say that something went wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from forerun.server.settings import ServerSettings
from forerun.testing.served import served_parts
from tests.server.support import (
    HELLO_BODY,
    ListeningServer,
    ServerUnderTest,
    events_of,
    listening,
    scripted_parts,
    served,
    streamed_content,
)

CHAT = "/v1/chat/completions"


def finish_reasons(events: list[Any], index: int = 0) -> list[str]:
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return [choice["finish_reason"] for choice in choices if choice["index"] == index and choice["finish_reason"]]


async def both(server: ServerUnderTest, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The same request whole and streamed."""
    whole = await server.chat(**fields)
    streamed = await server.chat(**fields, stream=True, stream_options={"include_usage": True})
    assert whole.status_code == streamed.status_code == 200, whole.text
    answer: dict[str, Any] = whole.json()
    return answer, events_of(streamed.text)


@pytest.mark.parametrize(
    ("said", "stop", "shown"),
    [
        ("ABCDEFGHIJKLM", ["DEFGHIJ"], "ABC"),
        ("ABCDEFGHIJKLM", ["GHI", "FG"], "ABCDE"),
        ("ABCDEFGHI", ["DEFGHIJ"], "ABCDEFGHI"),
        ("ABC DEF", ["C D", "BC D"], "A"),
        ("ABCDE", ["E"], "ABCD"),
        ("A", ["A"], ""),
    ],
)
def test_case_t1_nothing_of_a_stop_string_is_streamed_and_a_near_miss_is_whole(
    said: str, stop: list[str], shown: str
) -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: said)) as server:
            answer, events = await both(server, stop=stop, max_tokens=50)
            assert answer["choices"][0]["message"]["content"] == streamed_content(events) == shown
            assert finish_reasons(events) == [answer["choices"][0]["finish_reason"]] == ["stop"]

    asyncio.run(main())


@pytest.mark.parametrize("said", ["Grüße 👩‍👩‍👧‍👦 家族", "🇳🇴🇳🇴", "é" * 20])
def test_case_t2_each_event_is_whole_utf8_wherever_the_limit_cuts(said: str) -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: said)) as server:
            for limit in range(1, len(said.encode()) + 2, 3):
                answer, events = await both(server, max_tokens=limit)
                content = answer["choices"][0]["message"]["content"]
                assert content == streamed_content(events)
                assert said.startswith(content)
                assert "\ufffd" not in content

    asyncio.run(main())


def test_case_t2_noise_is_valid_json_in_every_event() -> None:
    async def main() -> None:
        async with served() as server:
            for seed in range(3):
                answer, events = await both(server, temperature=100.0, seed=seed, max_tokens=60, ignore_eos=True)
                assert answer["choices"][0]["message"]["content"] == streamed_content(events)

    asyncio.run(main())


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
@pytest.mark.parametrize(("said", "reason"), [("ok", "stop"), ("o" * 50, "length"), ("ok STOP", "stop")])
def test_case_t3_usage_comes_when_asked_and_done_is_last(
    options: dict[str, bool] | None, said: str, reason: str
) -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: said)) as server:
            whole = (await server.chat(stop="STOP", max_tokens=20, n=2)).json()
            response = await server.chat(stop="STOP", max_tokens=20, n=2, stream=True, stream_options=options)
            *events, done = events_of(response.text)
            assert done == "[DONE]"
            assert response.text.count("[DONE]") == 1
            assert finish_reasons(events, 0) == finish_reasons(events, 1) == [reason]
            if options == {"include_usage": True}:
                last = events.pop()
                assert last["choices"] == []
                for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                    assert last["usage"][name] == whole["usage"][name]
                assert all(event["usage"] is None for event in events)
            else:
                assert all("usage" not in event for event in events)
            assert all(event["choices"] for event in events)

    asyncio.run(main())


def test_a_stream_begins_with_the_role_once_a_choice() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "yes")) as server:
            events = events_of((await server.chat(stream=True, n=3)).text)[:-1]
            for index in range(3):
                deltas = [
                    choice["delta"] for event in events for choice in event["choices"] if choice["index"] == index
                ]
                assert deltas[0] == {"role": "assistant", "content": ""}
                assert all("role" not in delta for delta in deltas[1:])
                assert streamed_content(events, index) == "yes"
            assert len({event["id"] for event in events}) == 1

    asyncio.run(main())


def test_log_probabilities_are_those_of_the_whole_answer() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "añb")) as server:
            answer, events = await both(server, logprobs=True, top_logprobs=2, temperature=0)
            whole = answer["choices"][0]["logprobs"]["content"]
            streamed = [
                entry
                for event in events[:-1]
                for choice in event["choices"]
                if choice["logprobs"]
                for entry in choice["logprobs"]["content"]
            ]
            assert [entry["token"] for entry in whole] == [entry["token"] for entry in streamed]
            assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == "añb"
            assert all(len(entry["top_logprobs"]) == 2 for entry in whole)
            assert all(entry["logprob"] <= 0 for entry in whole)

    asyncio.run(main())


def test_the_headers_come_before_the_first_token_and_a_quiet_stream_sends_comments() -> None:
    parts = served_parts(seconds_per_step=0.5)
    with listening(parts, ServerSettings(port=0, keep_alive=0.05)) as server, httpx.Client(timeout=20) as client:
        body = {**HELLO_BODY, "max_tokens": 2, "stream": True}
        with client.stream("POST", server.url + CHAT, json=body) as response:
            assert response.status_code == 200
            lines = [line for line in response.iter_lines() if line]
    assert lines[0] == ": keep-alive"
    assert lines[-1] == "data: [DONE]"
    assert lines.count(": keep-alive") > 2


def test_an_error_after_the_start_is_the_last_event_and_ends_the_connection() -> None:
    with listening(served_parts(seconds_per_step=0.02)) as server, httpx.Client(timeout=20) as client:
        body = {**HELLO_BODY, "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        with client.stream("POST", server.url + CHAT, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            asyncio.run(server.engine.close())
            rest = [line for line in lines if line]
        assert "[DONE]" not in rest[-1]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert error["code"] == "engine_unavailable"
        assert client.get(server.url + "/health").status_code == 503
        assert client.post(server.url + CHAT, json=HELLO_BODY).status_code == 503


def test_a_timeout_ends_the_answer_with_an_error() -> None:
    async def main() -> None:
        async with served(served_parts(seconds_per_step=0.02)) as server:
            endless: dict[str, Any] = {"max_tokens": 100_000, "ignore_eos": True, "timeout": 0.2}
            whole = await server.chat(**endless)
            assert whole.status_code == 408
            assert whole.json()["error"]["code"] == "timeout"
            events = events_of((await server.chat(**endless, stream=True)).text)
            assert events[-1]["error"]["code"] == "timeout"
            await server.assert_idle()

    asyncio.run(main())


def test_the_server_may_allow_less_time_than_the_request() -> None:
    async def main() -> None:
        async with served(served_parts(seconds_per_step=0.02), ServerSettings(timeout=0.2)) as server:
            response = await server.chat(max_tokens=100_000, ignore_eos=True, timeout=60)
            assert response.status_code == 408
            assert "0.2 s" in response.json()["error"]["message"]

    asyncio.run(main())


def test_a_stream_goes_through_a_socket(listening_server: ListeningServer) -> None:
    response = httpx.post(listening_server.url + CHAT, json={**HELLO_BODY, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert events_of(response.text)[-1] == "[DONE]"
