"""What a server answered, read from the pieces that came: https://html.spec.whatwg.org/multipage/server-sent-events.html.

Read are streams of OpenAI's chat completions, with what llama.cpp's server (`timings`) and Forerun (`speculation`) add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec

from forerun.bench.http import Reply
from forerun.errors import BenchmarkError

_DONE: Final = b"[DONE]"
_SHOWN: Final = 300
"""Characters of an error that a server answered with."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What a server says of one answer. None: it does not say."""

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    """Of the prompt's: reused, not evaluated."""
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer as its reader saw it. Seconds of the client's clock."""

    label: str
    """Which part of a workload it is."""
    began: float
    """When the request was sent."""
    times: tuple[float, ...]
    """When content came, event by event. Tokens that a server sends in one event count as one."""
    ended: float
    text: str
    asked: int
    """Tokens at most."""
    finish: str = ""
    """Empty where the reader left before the end."""
    counts: TokenCounts = field(default_factory=TokenCounts)

    @property
    def ttft(self) -> float | None:
        """Seconds to the first content; None where none came."""
        return self.times[0] - self.began if self.times else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between events with content."""
        return [after - before for before, after in pairwise(self.times)]

    @property
    def output_tokens(self) -> int:
        """As the server counts. One that does not tell, and ended since no more were asked for, made all of them."""
        if self.counts.output is not None:
            return self.counts.output
        return self.asked if self.finish == "length" else len(self.times)

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first one; None where all came at once."""
        seconds = self.times[-1] - self.times[0] if self.times else 0.0
        return (self.output_tokens - 1) / seconds if seconds > 0 else None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Speculation(msgspec.Struct):
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    speculation: _Speculation | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


class Completion(msgspec.Struct):
    """An answer that was not streamed: only its counts are of use."""

    usage: _Usage | None = None


_EVENTS: Final = msgspec.json.Decoder(_Event)


def read_answer(reply: Reply, *, label: str, began: float, asked: int) -> Answer:
    """Raises BenchmarkError where the server refused, or where its stream ends with an error."""
    require_done(reply)
    times: list[float] = []
    texts: list[str] = []
    finish, usage, timings = "", None, None
    for at, data in events(reply.pieces):
        event = _event(data)
        usage, timings = event.usage or usage, event.timings or timings
        for choice in event.choices:
            finish = choice.finish_reason or finish
            text = _said(choice.delta)
            if text:
                texts.append(text)
        if event.choices and any(_said(choice.delta) for choice in event.choices):
            times.append(at)
    return Answer(label, began, tuple(times), reply.ended, "".join(texts), asked, finish, _counts(usage, timings))


def require_done(reply: Reply) -> None:
    """Raises BenchmarkError, with what the server said, for any status but 200."""
    if reply.status != 200:
        said = " ".join(reply.body.decode("utf-8", "replace").split())
        raise BenchmarkError(f"the server answered {reply.status}: {said[:_SHOWN] or 'nothing'}")


def events(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each event of a stream, with the time it was complete."""
    rest = b""
    for at, piece in pieces:
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data and data != _DONE:
                yield at, data


def _event(data: bytes) -> _Event:
    try:
        event = _EVENTS.decode(data)
    except msgspec.MsgspecError as error:
        raise BenchmarkError(f"an event of the server's stream is no completion: {error}: {data[:_SHOWN]!r}") from error
    if event.error is not None:
        raise BenchmarkError(f"the server's stream ended with an error: {str(event.error)[:_SHOWN]}")
    return event


def _said(delta: _Delta | None) -> str:
    if delta is None:
        return ""
    calls = "".join(str(call) for call in delta.tool_calls or ())
    return (delta.reasoning_content or "") + (delta.content or "") + calls


def _counts(usage: _Usage | None, timings: _Timings | None) -> TokenCounts:
    details = usage.prompt_tokens_details if usage is not None else None
    cached = details.cached_tokens if details is not None else None
    if cached is None and timings is not None:
        cached = timings.cache_n
    speculation = usage.speculation if usage is not None else None
    drafted, accepted = (timings.draft_n, timings.draft_n_accepted) if timings is not None else (0, 0)
    if speculation is not None:
        drafted, accepted = speculation.drafted_tokens, speculation.accepted_tokens
    if usage is None:
        return TokenCounts(cached=cached, drafted=drafted, accepted=accepted)
    return TokenCounts(usage.prompt_tokens, usage.completion_tokens, cached, drafted, accepted)


def prompt_tokens(reply: Reply) -> int | None:
    """Of an answer that was not streamed. None where the server does not say."""
    require_done(reply)
    try:
        usage = msgspec.json.decode(reply.body, type=Completion).usage
    except msgspec.MsgspecError as error:
        raise BenchmarkError(f"the server's answer is no completion: {error}") from error
    return None if usage is None else usage.prompt_tokens
