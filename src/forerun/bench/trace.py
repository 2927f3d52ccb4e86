"""Recorded traffic, for the simulation of the prefix cache: which prompts came when, and what was answered.

A trace is a text file of JSON lines, compressed by gzip. The first line says what it is, each other line is a request,
in the order of their arrival:

    {"format": "forerun-trace-1", "model": "smollm2", "bytes_per_token": 23040, "about": "..."}
    {"at": 12.5, "conversation": "a", "keep": 0, "prompt": [1, 4093, ...], "answer": [198, ...]}
    {"at": 31.0, "conversation": "a", "keep": 840, "prompt": [2, 198, ...], "answer": [...]}

    at             seconds since the beginning of the trace, not descending
    conversation   whose request it is
    keep           the prompt begins with so many tokens of what its conversation held after its last request (prompt
                   and answer); `prompt` is what follows
    answer         what the model generated, as tokens

Other fields are passed over.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from forerun.core.prompt import Tokens, as_tokens, shared_length

FORMAT = "forerun-trace-1"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    at: float
    """Seconds since the beginning."""
    conversation: str
    prompt: Tokens
    answer: Tokens

    @property
    def content(self) -> Tokens:
        """What a sequence holds after the request."""
        return as_tokens(np.concatenate([self.prompt, self.answer]))


@dataclass(frozen=True, slots=True)
class Trace:
    """Raises ValueError for requests that go back in time."""

    requests: tuple[TraceRequest, ...]
    model: str = ""
    bytes_per_token: int = 1
    """What a token takes in a tier: KV of target and draft."""
    about: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        times = [request.at for request in self.requests]
        if times != sorted(times):
            raise ValueError("the requests of a trace are in the order of their arrival")


def write_trace(path: Path, trace: Trace) -> None:
    header = {
        "format": FORMAT,
        "model": trace.model,
        "bytes_per_token": trace.bytes_per_token,
        "about": trace.about,
    }
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:  # same trace, same bytes
        for line in (header, *_lines(trace.requests)):
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _lines(requests: Iterable[TraceRequest]) -> Iterator[dict[str, Any]]:
    held: dict[str, Tokens] = {}
    for request in requests:
        keep = shared_length(held.get(request.conversation, as_tokens(())), request.prompt)
        held[request.conversation] = request.content
        yield {
            "at": round(request.at, 3),
            "conversation": request.conversation,
            "keep": keep,
            "prompt": request.prompt[keep:].tolist(),
            "answer": request.answer.tolist(),
        }


def read_trace(path: Path) -> Trace:
    """Raises OSError where the file cannot be read, ValueError where it is no trace."""
    requests: list[TraceRequest] = []
    held: dict[str, Tokens] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header = json.loads(next(file, "{}"))
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
            requests.extend(_request(json.loads(line), held) for line in file)
        return Trace(tuple(requests), header["model"], int(header["bytes_per_token"]), header.get("about", ""))
    except (KeyError, TypeError, AttributeError, ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        place = f"after {len(requests)} requests"
        raise ValueError(f"{path} is no trace: {place}: {type(error).__name__}: {error}") from error


def _request(line: dict[str, Any], held: dict[str, Tokens]) -> TraceRequest:
    before = held.get(line["conversation"], as_tokens(()))
    keep = int(line["keep"])
    if not 0 <= keep <= before.size:
        raise ValueError(f"it keeps {keep} tokens of {before.size}")
    prompt = as_tokens(np.concatenate([before[:keep], as_tokens(line["prompt"])]))
    request = TraceRequest(float(line["at"]), line["conversation"], prompt, as_tokens(line["answer"]))
    held[request.conversation] = request.content
    return request
