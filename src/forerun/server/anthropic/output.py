"""An answer as the Messages API tells of it: blocks of content as events, and the message that they add up to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import from_json

from forerun.chat.pieces import Content, Piece, Reasoning, ToolArguments, ToolCall
from forerun.core.request import FinishReason, Usage
from forerun.server.anthropic.errors import anthropic_error
from forerun.server.anthropic.thinking import UNSIGNED, holding
from forerun.server.jobs import ChoiceEvent
from forerun.server.problems import Problem
from forerun.server.sse import WireEvent
from forerun.server.timings import timings

Kind: TypeAlias = Literal["text", "thinking", "tool_use"]

_DELTAS: Final[dict[Kind, tuple[str, str]]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


@dataclass(slots=True)
class OpenBlock:
    """A block of content while it is written."""

    index: int
    kind: Kind
    start: dict[str, Any]
    """What the block is at its start."""
    is_hidden: bool = False
    """Its text is left out; its signature holds it."""
    pieces: list[str] = field(default_factory=list)

    def opening(self) -> WireEvent:
        return {"type": "content_block_start", "index": self.index, "content_block": self.start}

    def add(self, text: str) -> Iterator[WireEvent]:
        self.pieces.append(text)
        if not self.is_hidden:
            kind, name = _DELTAS[self.kind]
            yield self._delta({"type": kind, name: text})

    def closing(self) -> Iterator[WireEvent]:
        if self.kind == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self._signature()})
        yield {"type": "content_block_stop", "index": self.index}

    def value(self) -> dict[str, Any]:
        """The block as part of a message."""
        text = "".join(self.pieces)
        match self.kind:
            case "text":
                return self.start | {"text": text}
            case "thinking":
                return self.start | {"thinking": "" if self.is_hidden else text, "signature": self._signature()}
            case "tool_use":
                return self.start | {"input": _input_of(text)}

    def _delta(self, delta: dict[str, Any]) -> WireEvent:
        return {"type": "content_block_delta", "index": self.index, "delta": delta}

    def _signature(self) -> str:
        return holding("".join(self.pieces)) if self.is_hidden else UNSIGNED


def _input_of(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object, as far as they came: what clients make of the streamed pieces."""
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class MessageEvents:
    """Turns one answer's events into the API's. Of one message, used by one task.

    `message` is the message as far as it has come; without a stream it alone is sent.
    """

    def __init__(
        self, key: str, model: str, *, prompt_tokens: int, max_tokens: int, hides_thinking: bool = False
    ) -> None:
        """`key`: makes ids of the message and its calls."""
        self._key = key
        self._max_tokens = max_tokens
        self._hides_thinking = hides_thinking
        self._open: OpenBlock | None = None
        self.message: dict[str, Any] = {
            "id": f"msg_{key}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt_tokens, cached=0, output=0),
        }

    def begin(self) -> list[WireEvent]:
        """What a stream starts with. How much of the prompt was reused is told at the end."""
        return [{"type": "message_start", "message": {**self.message, "content": []}}, {"type": "ping"}]

    def push(self, event: ChoiceEvent) -> list[WireEvent]:
        """The events that one step's addition makes; with the last one comes the end of the message."""
        events = [told for piece in event.pieces for told in self._tell(piece)]
        if event.finish_reason is not None:
            events += self._finish(event)
        return events

    def fail(self, problem: Problem) -> list[WireEvent]:
        """What a stream ends with whose answering failed."""
        return [anthropic_error(problem)]

    def _tell(self, piece: Piece) -> Iterator[WireEvent]:
        match piece:
            case Content(text):
                yield from self._add("text", {"text": ""}, text)
            case Reasoning(text):
                yield from self._add("thinking", {"thinking": "", "signature": ""}, text)
            case ToolCall(index, name):
                yield from self._begin("tool_use", {"id": f"toolu_{self._key}_{index}", "name": name, "input": {}})
            case ToolArguments(_, text):
                assert self._open is not None, "arguments follow the call they belong to"
                yield from self._open.add(text)

    def _add(self, kind: Kind, start: dict[str, Any], text: str) -> Iterator[WireEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind, start)
        assert self._open is not None
        yield from self._open.add(text)

    def _begin(self, kind: Kind, start: dict[str, Any]) -> Iterator[WireEvent]:
        yield from self._close()
        hides = kind == "thinking" and self._hides_thinking
        self._open = OpenBlock(len(self.message["content"]), kind, {"type": kind, **start}, is_hidden=hides)
        yield self._open.opening()

    def _close(self) -> Iterator[WireEvent]:
        if self._open is not None:
            yield from self._open.closing()
            self.message["content"].append(self._open.value())
            self._open = None

    def _finish(self, event: ChoiceEvent) -> Iterator[WireEvent]:
        yield from self._close()
        reason, stop = self._stop_reason(event), None
        if reason == "stop_sequence":
            stop = event.stop_string
        self.message |= {"stop_reason": reason, "stop_sequence": stop}
        if event.usage is not None:
            self.message["usage"] = _answer_usage(event.usage, event.reasoning_tokens)
            self.message["timings"] = timings(event.usage).model_dump()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        told = {name: value for name, value in self.message["usage"].items() if name != "service_tier"}
        yield {"type": "message_delta", "delta": delta, "usage": told}
        yield {"type": "message_stop"}

    def _stop_reason(self, event: ChoiceEvent) -> str:
        if event.finish_reason is FinishReason.LENGTH:
            used = event.usage.output_tokens if event.usage is not None else self._max_tokens
            return "max_tokens" if used >= self._max_tokens else "model_context_window_exceeded"
        if event.has_called:
            return "tool_use"
        return "end_turn" if event.stop_string is None else "stop_sequence"


def _usage(prompt: int, *, cached: int, output: int) -> dict[str, Any]:
    # Input tokens are those that were neither read from the cache nor written to it; what is computed is kept anyway.
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": output,
        "service_tier": "standard",
    }


def _answer_usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    told = _usage(usage.prompt_tokens, cached=usage.cached_tokens, output=usage.output_tokens)
    return told | {"output_tokens_details": {"thinking_tokens": reasoning_tokens}}
