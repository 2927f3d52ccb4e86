"""How far a prompt has been read, told while it is (`stream_options.include_progress`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.testing.served import served_parts
from tests.server.support import MODEL, events_of, served

PROMPT = "x" * 3000  # six steps of 512 rows


def streamed(path: str, **fields: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with served(served_parts(seconds_per_step=0.002)) as server:
            body = {"model": MODEL, "max_tokens": 4, "stream": True, "ignore_eos": True, **fields}
            response = await server.client.post(path, json=body)
            assert response.status_code == 200, response.text
            return events_of(response.text)

    return asyncio.run(main())


CHAT = {"messages": [{"role": "user", "content": PROMPT}]}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": PROMPT})], ids=["chat", "text"]
)
def test_progress_goes_up_to_the_whole_prompt_before_the_first_token_and_says_how_long(path: str, body: Any) -> None:
    events = streamed(path, **body, stream_options={"include_progress": True, "include_usage": True})
    told = [event["progress"] for event in events if event != "[DONE]" and "progress" in event]
    assert len(told) >= 3  # of six steps: who reads slowly is told what is true by then
    done = [progress["done"] for progress in told]
    total = {progress["total"] for progress in told}
    assert done == sorted(set(done))
    assert total == {events[-2]["usage"]["prompt_tokens"]}
    assert done[-1] <= max(total)
    assert told[0]["seconds_left"] is None  # no rate is known yet
    assert all(progress["seconds_left"] >= 0 for progress in told[1:])
    is_progress = ["progress" in event for event in events[:-1]]
    assert is_progress == sorted(is_progress, reverse=True)
    assert all(event["choices"] == [] for event in events[:-1] if "progress" in event)


def test_nobody_is_told_who_did_not_ask() -> None:
    assert all("progress" not in event for event in streamed("/v1/chat/completions", **CHAT)[:-1])


def test_progress_of_an_answer_that_is_not_streamed_is_refused_by_name() -> None:
    async def main() -> None:
        async with served() as server:
            response = await server.chat(stream_options={"include_progress": True})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "stream_options"

    asyncio.run(main())
