"""Clients that leave: cases X1, X2 and X4."""

from __future__ import annotations

import random
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from forerun.testing.served import served_parts
from tests.server.support import HELLO_BODY, ListeningServer, events_of, listening, seats_of

CHAT = "/v1/chat/completions"
ENDLESS: dict[str, Any] = {**HELLO_BODY, "max_tokens": 60_000, "ignore_eos": True}
PATIENCE = 10.0


def wait_until_idle(server: ListeningServer) -> None:
    until = time.monotonic() + PATIENCE
    while server.stats() != (0, 0):
        assert time.monotonic() < until, server.stats()
        time.sleep(0.01)
    assert seats_of(server.backend).open == 0


def wait_until_busy(server: ListeningServer, running: int) -> None:
    until = time.monotonic() + PATIENCE
    while server.stats()[0] < running:
        assert time.monotonic() < until
        time.sleep(0.01)


def send_and_leave(server: ListeningServer, body: dict[str, Any], running: int) -> None:
    """Send a request that is not streamed, and close the socket once it runs."""
    content = httpx.Request("POST", server.url + CHAT, json=body).content
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        wait_until_busy(server, running)


@pytest.mark.parametrize("n", [1, 2])
def test_case_x1_a_client_that_leaves_its_stream_ends_all_its_requests(n: int) -> None:
    with listening(served_parts(seconds_per_step=0.005, max_num_seqs=2)) as server, httpx.Client() as client:
        with client.stream("POST", server.url + CHAT, json={**ENDLESS, "stream": True, "n": n}) as response:
            for count, line in enumerate(response.iter_lines()):
                if count > 6:
                    assert line is not None
                    break
        wait_until_idle(server)
        assert client.post(server.url + CHAT, json=HELLO_BODY, timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize("n", [1, 2])
def test_case_x1_a_client_that_leaves_without_a_stream_ends_all_its_requests(n: int) -> None:
    with listening(served_parts(seconds_per_step=0.005, max_num_seqs=2)) as server:
        send_and_leave(server, {**ENDLESS, "n": n}, n)
        wait_until_idle(server)
        assert httpx.post(server.url + CHAT, json=HELLO_BODY, timeout=PATIENCE).status_code == 200


def test_case_x2_a_client_that_leaves_while_its_prompt_is_read_frees_the_engine_within_a_chunk() -> None:
    long = {**ENDLESS, "messages": [{"role": "user", "content": "x" * 30_000}]}
    with listening(served_parts(seconds_per_step=0.05, max_num_seqs=1)) as server:
        send_and_leave(server, long, 1)
        response = httpx.post(server.url + CHAT, json={**HELLO_BODY, "max_tokens": 1}, timeout=PATIENCE)
        assert response.status_code == 200
        wait_until_idle(server)
        assert response.json()["timings"]["cache_n"] < 30_000


def test_case_x4_two_hundred_streams_cut_at_random_leave_the_server_whole() -> None:
    chance = random.Random(4)
    with listening(served_parts(seconds_per_step=0.001), max_running=64) as server, httpx.Client() as client:

        def cut_some(count: int) -> None:
            for _ in range(count):
                body = {**ENDLESS, "stream": True, "max_tokens": 2000}
                with client.stream("POST", server.url + CHAT, json=body) as response:
                    left = chance.randrange(12)
                    for _ in response.iter_lines():
                        left -= 1
                        if left < 0:
                            break

        threads = [threading.Thread(target=cut_some, args=(34,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for _ in range(10):
            response = client.post(server.url + CHAT, json={**HELLO_BODY, "stream": True}, timeout=PATIENCE)
            assert events_of(response.text)[-1] == "[DONE]"
        wait_until_idle(server)
        assert client.get(server.url + "/health").json()["status"] == "ok"
