"""What is known of an HTTP request while it is answered, and who is told of it: metrics, the log, traces.

    Watch (ASGI, outermost) ── started ──► observers ◄── first_token, tokens ── RequestRecord ◄── the answering
           └──────────────── finished ──────►

A record holds counts, times and names out of bounded sets: nothing of what was asked or answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol

from starlette.datastructures import Headers

from forerun.core.request import FinishReason, Usage

OTHER: Final = "other"
"""Stands for routes and methods that are none of ours."""
_SERVER_FAILED: Final = 500


class RequestObserver(Protocol):
    """Is told of requests on the event loop; never blocks, never raises."""

    def started(self, record: RequestRecord) -> None: ...

    def first_token(self, record: RequestRecord, seconds: float) -> None:
        """A choice has its first token, so long after the request came."""
        ...

    def tokens(self, record: RequestRecord, count: int, seconds: float) -> None:
        """A choice has `count` more tokens, `seconds` after those before them: `seconds / count` a token."""
        ...

    def finished(self, record: RequestRecord) -> None:
        """The last byte has been sent, or never will be."""
        ...


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """What is known of one HTTP request. Owned by the event loop."""

    id: str
    method: str
    arrival: float
    """On the server's clock, in seconds."""
    observers: Sequence[RequestObserver]
    clock: Callable[[], float]
    headers: Headers = field(default_factory=Headers, repr=False)
    """Of the request; for what continues a caller's trace."""
    route: str = OTHER
    """The path as the route has it, without what callers put into it."""
    status: int = _SERVER_FAILED
    tenant: str = ""
    """A digest of the caller's key; empty without keys."""
    model: str = ""
    is_stream: bool = False
    input_tokens: int = 0
    """Tokens of prompts, or of what is embedded, each counted once."""
    usages: list[Usage] = field(default_factory=list)
    """Of each choice that has ended."""
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None
    """What kind of error ended it: a code of server.problems."""
    ttft: float | None = None
    """Seconds until the first token of any choice."""
    seconds: float = 0.0
    """Until its end."""
    open_choices: int = 0
    _latest: dict[int, float] = field(default_factory=dict)
    """By choice: when it last got tokens."""

    def begin(self, model: str, choices: int, input_tokens: int) -> None:
        """A job was accepted: so many choices will come."""
        self.model = model
        self.open_choices += choices
        self.input_tokens += input_tokens

    def count(self, choice: int, tokens: int) -> None:
        """A choice got tokens just now."""
        now = self.clock()
        before = self._latest.get(choice)
        self._latest[choice] = now
        if before is None:
            self.ttft = self.ttft if self.ttft is not None else now - self.arrival
            for observer in self.observers:
                observer.first_token(self, now - self.arrival)
            tokens -= 1
            before = now
        if tokens > 0:
            for observer in self.observers:
                observer.tokens(self, tokens, now - before)

    def end_choice(self, reason: FinishReason, usage: Usage | None) -> None:
        """A choice has ended."""
        self.open_choices -= 1
        self.finish_reasons.append(reason.value)
        if usage is not None:
            self.usages.append(usage)

    def fail(self, kind: str) -> None:
        """An error ends the request; the first one counts."""
        self.error = self.error or kind

    def finish(self) -> None:
        """The last byte has gone. Choices that are still open failed, or were cancelled."""
        self.seconds = self.clock() - self.arrival
        unfinished = FinishReason.ABORT if self.error is None else FinishReason.ERROR
        self.finish_reasons += [unfinished.value] * max(self.open_choices, 0)
        self.open_choices = 0
        for observer in self.observers:
            observer.finished(self)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that no choice had to compute."""
        computed = sum(usage.prompt_tokens - usage.cached_tokens for usage in self.usages)
        return max(self.input_tokens - computed, 0)

    @property
    def output_tokens(self) -> int:
        return sum(usage.output_tokens for usage in self.usages)


_record: ContextVar[RequestRecord | None] = ContextVar("forerun_request_record", default=None)


def current_record() -> RequestRecord:
    """The record of the request that this task serves; one that nobody reads where none is watched."""
    return _record.get() or RequestRecord(id="", method=OTHER, arrival=0.0, observers=(), clock=time.monotonic)


@contextmanager
def serving_record(record: RequestRecord) -> Iterator[None]:
    """Make it the record of what runs inside."""
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)
