"""What the client reads of streams, whatever server they are from."""

from __future__ import annotations

import pytest

from forerun.bench.http import Reply
from forerun.bench.reading import TokenCounts, events, prompt_tokens, read_answer
from forerun.errors import BenchmarkError


def chunk(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}' % text.encode()


LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}'


def reply(*pieces: tuple[float, bytes], status: int = 200) -> Reply:
    return Reply(status, list(pieces), pieces[-1][0] if pieces else 0.0)


def test_an_event_has_the_time_of_the_piece_that_completes_it() -> None:
    first, second = chunk("a") + b"\n\n", chunk("b") + b"\n\n"
    cut = [(1.0, first[:20]), (2.0, first[20:] + second[:-1]), (3.0, second[-1:])]
    assert [at for at, _ in events(cut)] == [2.0, 3.0]
    answer = read_answer(reply(*cut), label="x", began=0.5, asked=2)
    assert (answer.ttft, answer.gaps, answer.text) == (1.5, [1.0], "ab")


def test_lines_may_end_as_in_http_and_comments_are_no_events() -> None:
    body = b": keep-alive\r\n\r\n" + chunk("a") + b"\r\n\r\n" + b"data: [DONE]\r\n\r\n"
    assert [data for _, data in events([(1.0, body)])] == [chunk("a")[6:]]


def test_only_events_with_content_count_for_times() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}'
    body = [(float(at), part + b"\n\n") for at, part in enumerate((role, chunk("a"), chunk("b"), LAST), start=1)]
    answer = read_answer(reply(*body), label="", began=0.0, asked=2)
    assert answer.times == (2.0, 3.0)
    assert answer.ended == 4.0


def test_counts_are_read_from_usage_and_from_llama_cpp_s_timings() -> None:
    usage = b'"usage":{"prompt_tokens":30,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":20}}'
    timings = b'"timings":{"cache_n":21,"draft_n":4,"draft_n_accepted":3}'
    speculation = (
        b'"usage":{"prompt_tokens":30,"completion_tokens":5,"speculation":{"drafted_tokens":7,"accepted_tokens":6}}'
    )
    read = [
        read_answer(reply((1.0, b"data: {%s}\n\n" % part)), label="", began=0.0, asked=5).counts
        for part in (usage, timings, usage + b"," + timings, speculation)
    ]
    assert read == [
        TokenCounts(30, 5, 20),
        TokenCounts(cached=21, drafted=4, accepted=3),
        TokenCounts(30, 5, 20, 4, 3),
        TokenCounts(30, 5, None, 7, 6),
    ]


def test_an_answer_that_ended_by_length_has_all_tokens_that_were_asked_for() -> None:
    body = b"\n\n".join([chunk("a"), chunk("b"), LAST, b""])
    assert read_answer(reply((1.0, body)), label="", began=0.0, asked=9).output_tokens == 9
    left = b"\n\n".join([chunk("a"), chunk("b"), b""])
    assert read_answer(reply((1.0, left)), label="", began=0.0, asked=9).output_tokens == 2


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"error": {"message": "too long"}}', ("answered 400", "too long")),
        (200, b'data: {"error": {"message": "engine died"}}\n\n', ("ended with an error", "engine died")),
        (200, b"data: <html>\n\n", ("no completion", "<html>")),
    ],
)
def test_what_is_no_answer_is_told(status: int, body: bytes, words: tuple[str, str]) -> None:
    with pytest.raises(BenchmarkError) as told:
        read_answer(reply((1.0, body), status=status), label="", began=0.0, asked=1)
    assert all(word in str(told.value) for word in words)


def test_the_length_of_a_prompt_is_read_from_an_unstreamed_answer() -> None:
    assert prompt_tokens(reply((1.0, b'{"usage": {"prompt_tokens": 12}, "choices": []}'))) == 12
    assert prompt_tokens(reply((1.0, b"{}"))) is None
