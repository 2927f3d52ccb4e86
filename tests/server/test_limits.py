"""Queues and contexts that are full: cases O4 and A3, and how a server ends."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from forerun.engine.health import EngineState
from forerun.errors import OverloadedError
from forerun.server.app import create_app
from forerun.server.seats import Seats
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings
from forerun.testing import ManualClock
from forerun.testing.served import served_parts
from tests.server.support import HELLO_BODY, events_of, listening, served

CHAT = "/v1/chat/completions"


def test_case_o4_a_full_queue_refuses_at_once_and_says_when_to_come_again() -> None:
    parts = served_parts(seconds_per_step=0.02, max_num_seqs=1)

    async def main() -> None:
        async with served(parts, ServerSettings(max_queue=4), max_running=1) as server:
            tasks = [asyncio.create_task(server.chat(max_tokens=20, ignore_eos=True)) for _ in range(50)]
            done, _ = await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.2)
            assert (await server.client.get("/health")).status_code == 200
            responses = await asyncio.gather(*tasks)
            refused = [response for response in responses if response.status_code == 503]
            answered = sum(response.status_code == 200 for response in responses)
            assert answered + len(refused) == 50
            assert 5 <= answered <= 10  # on a busy machine some end before the last one comes
            for response in refused:
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["error"]["code"] == "overloaded"
            assert done
            assert (await server.chat()).status_code == 200
            await server.assert_idle()

    asyncio.run(main())


def test_the_wait_is_told_from_the_rate_at_which_requests_end() -> None:
    clock = ManualClock()
    seats = Seats(2, 4, clock)
    for _ in range(6):
        seats.take(1)
    for _ in range(3):  # one every three seconds
        clock.advance(3.0)
        seats.release(1)
        seats.take(1)
    with pytest.raises(OverloadedError) as caught:
        seats.take(1)
    assert caught.value.retry_after == pytest.approx(4 * 3.0)
    assert repr(seats) == "Seats(6 open, 2 run, 4 wait)"


@pytest.mark.parametrize("stream", [False, True])
def test_case_a3_a_prompt_beyond_the_context_is_refused_before_anything_is_sent(*, stream: bool) -> None:
    n_ctx = 300

    async def main() -> None:
        async with served(served_parts(n_ctx=n_ctx)) as server:
            around = (await server.chat("")).json()["usage"]["prompt_tokens"]
            for extra in (-1, 0):
                response = await server.chat("x" * (n_ctx - around + extra), stream=stream, ignore_eos=True)
                assert response.status_code == 200
                if stream:
                    (reason,) = [
                        choice["finish_reason"]
                        for event in events_of(response.text)[:-1]
                        for choice in event["choices"]
                        if choice["finish_reason"]
                    ]
                else:
                    assert response.json()["usage"]["prompt_tokens"] == n_ctx + extra
                    reason = response.json()["choices"][0]["finish_reason"]
                assert reason == "length"
            for size in (n_ctx + 1, 3 * n_ctx):
                response = await server.chat("x" * (size - around), stream=stream)
                assert response.status_code == 400
                error = response.json()["error"]
                assert error["code"] == "context_length_exceeded"
                assert f"{size} tokens" in error["message"]
                assert f"holds {n_ctx}" in error["message"]
                response = await server.complete("x" * size, stream=stream)
                assert response.status_code == 400
                assert response.json()["error"]["param"] == "prompt"

    asyncio.run(main())


def test_health_is_not_ok_before_the_model_is_loaded_and_when_it_cannot_be() -> None:
    async def main() -> None:
        backend = Backend(ServerSettings())
        transport = httpx.ASGITransport(create_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            backend.loading("model.gguf", 0.25)
            response = await client.get("/health")
            assert response.status_code == 503
            assert response.json() == {"status": "loading", "loading": {"what": "model.gguf", "share": 0.25}}
            early = await client.post(CHAT, json=HELLO_BODY)
            assert early.status_code == 503
            assert "25%" in early.json()["error"]["message"]
            assert int(early.headers["retry-after"]) > 0
            backend.failed("model.gguf: is no model")
            response = await client.get("/health")
            assert (response.status_code, response.json()["status"]) == (503, EngineState.FAILED)
            failed = await client.post(CHAT, json=HELLO_BODY)
            assert failed.status_code == 503
            assert "is no model" in failed.json()["error"]["message"]

    asyncio.run(main())


def test_a_server_that_is_told_to_stop_finishes_what_is_open() -> None:
    with listening(served_parts(seconds_per_step=0.01)) as server:
        answers: list[httpx.Response] = []
        body: dict[str, Any] = {**HELLO_BODY, "max_tokens": 60, "ignore_eos": True}
        thread = threading.Thread(target=lambda: answers.append(httpx.post(server.url + CHAT, json=body, timeout=20)))
        thread.start()
        while server.stats()[0] == 0:
            time.sleep(0.01)
        server.stop()
        thread.join(20)
        assert answers[0].status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url + "/health")


def test_what_is_open_when_the_time_to_stop_is_over_ends_with_an_error() -> None:
    settings = ServerSettings(port=0, shutdown_timeout=0.2)
    with listening(served_parts(seconds_per_step=0.01), settings) as server, httpx.Client(timeout=20) as client:
        body = {**HELLO_BODY, "max_tokens": 60_000, "ignore_eos": True, "stream": True}
        with client.stream("POST", server.url + CHAT, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.stop()
            rest = [line for line in lines if line]
        assert "the server is being stopped" in rest[-1]


def test_headers_without_an_end_are_refused() -> None:
    with listening(settings=ServerSettings(port=0, max_header_bytes=2048)) as server:
        response = httpx.get(server.url + "/health", headers={"x-long": "y" * 100_000})
        assert response.status_code == 431
        assert httpx.get(server.url + "/health").status_code == 200
