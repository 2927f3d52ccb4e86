"""Chat completions: whole answers and streams are the same answer."""

from __future__ import annotations

import asyncio

import httpx

from tests.server.support import ListeningServer, events_of, scripted_parts, served, streamed_content


def test_a_chat_is_answered_whole() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "Good day")) as server:
            response = await server.chat()
            assert response.status_code == 200
            answer = response.json()
            (choice,) = answer["choices"]
            assert choice["message"]["content"] == "Good day"[:8]
            assert choice["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 8
            await server.assert_idle()

    asyncio.run(main())


def test_a_stream_joins_to_the_whole_answer() -> None:
    async def main() -> None:
        async with served() as server:
            whole = await server.chat(temperature=0, max_tokens=30)
            streamed = await server.chat(temperature=0, max_tokens=30, stream=True)
            assert streamed.headers["content-type"].startswith("text/event-stream")
            events = events_of(streamed.text)
            assert events[-1] == "[DONE]"
            assert streamed_content(events) == whole.json()["choices"][0]["message"]["content"] != ""
            await server.assert_idle()

    asyncio.run(main())


def test_a_stream_comes_through_a_socket(listening_server: ListeningServer) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True}
    response = httpx.post(f"{listening_server.url}/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert events_of(response.text)[-1] == "[DONE]"
