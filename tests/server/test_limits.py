"""Queues and contexts that are full: cases O4 and A3, and how a server ends."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from forerun.core.prompt import Tokens
from forerun.errors import OverloadedError
from forerun.server.seats import Seats
from forerun.server.settings import LogFormat, ServerSettings
from forerun.testing import ManualClock
from forerun.testing.served import served_parts
from tests.server.support import HELLO_BODY, ListeningServer, events_of, listening, scripted_parts, served

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


def test_a_prompt_much_too_long_is_refused_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    n_ctx, longest = 300, len("<|im_start|>")
    text = "x" * (n_ctx * longest + 1)

    async def main() -> None:
        parts = served_parts(n_ctx=n_ctx)
        async with served(parts) as server:
            assert (await server.client.post("/tokenize", json={"prompt": text})).json()["count"] == len(text)

            def never(*_args: object, **_options: object) -> Tokens:
                raise AssertionError("tokenised")

            monkeypatch.setattr(parts.vocabulary, "tokenize", never)
            for response in (await server.chat(text), await server.complete(text)):
                assert response.status_code == 400
                error = response.json()["error"]
                assert error["code"] == "context_length_exceeded"
                assert re.search(r"has at least 30\d tokens \(36\d\d characters\).* holds 300", error["message"])
            response = await server.complete([1] * 301)
            assert "has 301 tokens, but the context holds 300" in response.json()["error"]["message"]

    asyncio.run(main())


def test_a_long_text_that_is_tokenised_does_not_hold_up_the_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on = threading.Event(), threading.Event()
    parts = served_parts()
    tokenize = parts.vocabulary.tokenize

    def slowly(text: str, **options: bool) -> Tokens:
        if len(text) > 10_000:
            began.set()
            assert goes_on.wait(10)
        return tokenize(text, **options)

    monkeypatch.setattr(parts.vocabulary, "tokenize", slowly)

    async def main() -> None:
        async with served(parts) as server:
            long = asyncio.create_task(server.client.post("/tokenize", json={"prompt": "x" * 20_000}))
            assert await asyncio.to_thread(began.wait, 10)
            answer = await asyncio.wait_for(server.complete(logprobs=1), 5)
            assert answer.status_code == 200
            goes_on.set()
            assert (await long).json()["count"] == 20_000

    asyncio.run(main())


def test_a_conversation_beyond_what_a_template_may_do_is_told_so_in_plain_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forerun.chat.effort_bound.MAX_EFFORT", 1_000)
    template = "{% for message in messages %}{{ message['content'] | trim }}{% endfor %}"

    async def main() -> None:
        async with served(scripted_parts(lambda _: "a", template=template)) as server:
            response = await server.chat("x" * 100_000)
            assert response.status_code == 400
            message = response.json()["error"]["message"]
            assert "the conversation is too long to render" in message
            assert "Error" not in message

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


def test_addresses_beyond_the_limit_are_refused_as_headers_are() -> None:
    with listening() as server:
        assert raw_answer(server, b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n") == 431
        assert raw_answer(server, b"GET /health HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n") == 431
        assert raw_answer(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n") == 200


@pytest.mark.parametrize("form", LogFormat)
def test_what_is_no_http_is_told_in_the_form_of_the_log(form: LogFormat, caplog: pytest.LogCaptureFixture) -> None:
    told = {
        LogFormat.JSON: ['{"status": 400, "error": "invalid_http"}'],
        LogFormat.TEXT: ["status=400 error=invalid_http"],
        LogFormat.OFF: [],
    }
    caplog.set_level(logging.INFO, "forerun.requests")
    with listening(settings=ServerSettings(port=0, log_format=form)) as server:
        assert raw_answer(server, b"what?\r\n\r\n") == 400
        assert [record.getMessage() for record in caplog.records] == told[form]


def raw_answer(server: ListeningServer, sent: bytes) -> int:
    """The status of the answer."""
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 0), timeout=10) as client:
        client.sendall(sent)
        return int(client.recv(1000).split()[1])


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "aba", "with_pieces": True}), ("/detokenize", {"tokens": [97]})]
)
def test_tokens_are_shown_on_a_thread_since_there_may_be_millions(path: str, body: dict[str, Any]) -> None:
    parts, threads = served_parts(), set()
    piece = parts.vocabulary.piece

    def noted(token: int) -> bytes:
        threads.add(threading.get_ident())
        return piece(token)

    async def main() -> None:
        async with served(parts) as server:
            threads.clear()
            assert (await server.client.post(path, json=body)).status_code == 200
            assert threads
            assert threading.get_ident() not in threads

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.vocabulary, "piece", noted)
        asyncio.run(main())
