"""An answer as the Responses API tells of it: numbered events, and the response that they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from forerun.chat.pieces import Content, Piece, Reasoning, ToolArguments, ToolCall
from forerun.core.request import FinishReason
from forerun.server.chat_answers import BytesOf, logprobs_value
from forerun.server.jobs import ChoiceEvent
from forerun.server.problems import Problem
from forerun.server.responses.items import (
    ANSWER,
    REASONING,
    REASONING_SUMMARY,
    CallItem,
    Item,
    Status,
    TextItem,
    TextKind,
)
from forerun.server.sse import WireEvent
from forerun.server.timings import completion_usage, timings

_NOT_COMPLETED: Final[Mapping[FinishReason, str]] = {FinishReason.LENGTH: "max_output_tokens"}


class ResponseEvents:
    """Turns one answer's events into the API's. Of one response, used by one task.

    `response` is the response as far as it has come; without a stream it alone is sent.
    """

    def __init__(
        self, response: Mapping[str, Any], *, bytes_of: BytesOf | None = None, reasoning_as_summary: bool = False
    ) -> None:
        """`response`: its id, what it echoes of the request, and status "in_progress".

        `bytes_of` gives the texts of tokens where log probabilities are wanted.
        """
        self.response: dict[str, Any] = {**response, "output": []}
        self._key = str(response["id"]).removeprefix("resp_")
        self._bytes_of = bytes_of
        self._reasoning: TextKind = REASONING_SUMMARY if reasoning_as_summary else REASONING
        self._open: Item | None = None
        self._items = 0
        self._number = 0
        self._logprobs: list[Mapping[str, Any]] = []
        """Of tokens whose text has not been shown yet."""

    def begin(self) -> list[WireEvent]:
        """What a stream starts with."""
        return self._numbered(self._state_event(name) for name in ("created", "in_progress"))

    def push(self, event: ChoiceEvent) -> list[WireEvent]:
        """The events that one step's addition makes; with the last one comes the end of the response."""
        if self._bytes_of is not None and event.logprobs:
            self._logprobs += logprobs_value(event.logprobs, self._bytes_of)["content"]
        return self._numbered(self._all_of(event))

    def fail(self, problem: Problem) -> list[WireEvent]:
        """The end of a response whose answering failed."""
        return self._numbered(self._failure(problem.message))

    def _numbered(self, events: Iterable[WireEvent]) -> list[WireEvent]:
        numbered = []
        for event in events:
            numbered.append(event | {"sequence_number": self._number})
            self._number += 1
        return numbered

    def _all_of(self, event: ChoiceEvent) -> Iterator[WireEvent]:
        for piece in event.pieces:
            yield from self._tell(piece)
        if event.finish_reason is not None:
            yield from self._finish(event, event.finish_reason)

    def _tell(self, piece: Piece) -> Iterator[WireEvent]:
        match piece:
            case Content(text):
                yield from self._add_text(ANSWER, text)
            case Reasoning(text):
                yield from self._add_text(self._reasoning, text)
            case ToolCall(index, name):
                key = f"{self._key}_{index}"
                yield from self._begin(CallItem(f"fc_{key}", self._items, f"call_{key}", name))
            case ToolArguments(_, text):
                self._logprobs = []
                assert isinstance(self._open, CallItem), "arguments follow the call they belong to"
                yield self._open.add(text)

    def _add_text(self, kind: TextKind, text: str) -> Iterator[WireEvent]:
        if not isinstance(self._open, TextItem) or self._open.kind is not kind:
            prefix = "msg" if kind is ANSWER else "rs"
            yield from self._begin(TextItem(f"{prefix}_{self._key}_{self._items}", self._items, kind))
        assert isinstance(self._open, TextItem)
        logprobs, self._logprobs = self._logprobs, []
        yield self._open.add(text, logprobs if kind is ANSWER else ())

    def _begin(self, item: Item) -> Iterator[WireEvent]:
        yield from self._close("completed")
        self._open = item
        self._items += 1
        yield from item.opening()

    def _close(self, status: Status) -> Iterator[WireEvent]:
        if self._open is not None:
            yield from self._open.closing(status)
            self.response["output"].append(self._open.value(status))
            self._open = None

    def _finish(self, event: ChoiceEvent, reason: FinishReason) -> Iterator[WireEvent]:
        if event.usage is not None:
            usage = completion_usage([[event.usage]], event.reasoning_tokens)
            self.response["usage"] = _usage(usage.model_dump(exclude_none=True))
            self.response["timings"] = timings(event.usage).model_dump()
        if reason is FinishReason.STOP:
            yield from self._end("completed", "completed")
        elif reason is FinishReason.ERROR:
            yield from self._failure("the answer could not be finished")
        else:
            details = {"reason": _NOT_COMPLETED.get(reason)}
            yield from self._end("incomplete", "incomplete", incomplete_details=details)

    def _failure(self, message: str) -> Iterator[WireEvent]:
        yield from self._end("failed", "incomplete", error={"code": "server_error", "message": message})

    def _end(self, state: str, last_item: Status, **changes: object) -> Iterator[WireEvent]:
        yield from self._close(last_item)
        self.response |= {"status": state, **changes}
        yield self._state_event(state)

    def _state_event(self, state: str) -> WireEvent:
        return {"type": f"response.{state}", "response": {**self.response, "output": list(self.response["output"])}}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
    return told | ({"speculation": usage["speculation"]} if "speculation" in usage else {})
