"""Files of recorded requests."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from forerun.bench.trace import Trace, TraceRequest, read_trace, write_trace
from forerun.core.prompt import as_tokens


def request(at: float, conversation: str, prompt: list[int], answer: list[int]) -> TraceRequest:
    return TraceRequest(at, conversation, as_tokens(prompt), as_tokens(answer))


TRACE = Trace(
    (
        request(0.0, "a", [1, 2, 3], [4, 5]),
        request(1.5, "b", [1, 2, 9], []),
        request(2.25, "a", [1, 2, 3, 4, 5, 6, 7], [8]),
        request(9.0, "a", [1, 2, 3, 7], [1]),
    ),
    model="m",
    bytes_per_token=100,
    about="made up",
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.gz", TRACE)
    trace = read_trace(tmp_path / "t.gz")
    assert (trace.model, trace.bytes_per_token, trace.about) == ("m", 100, "made up")
    assert [(r.at, r.conversation, r.prompt.tolist(), r.answer.tolist()) for r in trace.requests] == [
        (r.at, r.conversation, r.prompt.tolist(), r.answer.tolist()) for r in TRACE.requests
    ]


def test_a_prompt_that_goes_on_is_written_as_what_is_new(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.gz", TRACE)
    lines = gzip.decompress((tmp_path / "t.gz").read_bytes()).splitlines()
    assert lines[3] == b'{"at":2.25,"conversation":"a","keep":5,"prompt":[6,7],"answer":[8]}'
    assert b'"keep":3,"prompt":[7]' in lines[4]


def test_the_same_trace_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_trace(tmp_path / name, TRACE)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{}", "KeyError"),
        (b"[1]", "TypeError"),
        (b"no JSON", "JSONDecodeError"),
        (b'{"format": "forerun-trace-9"}', "its format is"),
        (
            b'{"format": "forerun-trace-1", "model": "", "bytes_per_token": 1}\n'
            b'{"at": 0, "conversation": "a", "keep": 3, "prompt": [1], "answer": []}',
            "after 0 requests: ValueError: it keeps 3 tokens of 0",
        ),
    ],
)
def test_other_files_are_refused_with_what_is_wrong(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=problem):
        read_trace(path)


def test_a_file_that_is_cut_or_not_compressed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    write_trace(path, TRACE)
    for content in (path.read_bytes()[:-20], b"text", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is no trace"):
            read_trace(path)


def test_requests_do_not_go_back_in_time() -> None:
    with pytest.raises(ValueError, match="order of their arrival"):
        Trace((request(2.0, "a", [1], []), request(1.0, "b", [1], [])))


def test_the_content_of_a_request_is_its_prompt_and_answer() -> None:
    assert np.array_equal(TRACE.requests[0].content, [1, 2, 3, 4, 5])
