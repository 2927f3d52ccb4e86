"""The items that an answer consists of, each as the events that tell of it.

    output_item.added ─► [content_part.added ─► deltas ─► done ─► content_part.done] ─► output_item.done

A message and a reasoning item hold one part of text; a call holds its arguments, without a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forerun.server.sse import WireEvent

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class TextKind:
    """What the events of one kind of text are called, and where the text lies in its item."""

    item_type: Literal["message", "reasoning"]
    part_event: str
    text_event: str
    index: str
    """Name of the part's index."""
    part_type: str
    holder: Literal["content", "summary"]
    """The item's list that holds the part."""


ANSWER = TextKind("message", "response.content_part", "response.output_text", "content_index", "output_text", "content")
REASONING = TextKind(
    "reasoning", "response.content_part", "response.reasoning_text", "content_index", "reasoning_text", "content"
)
REASONING_SUMMARY = TextKind(
    "reasoning",
    "response.reasoning_summary_part",
    "response.reasoning_summary_text",
    "summary_index",
    "summary_text",
    "summary",
)


@dataclass(slots=True)
class TextItem:
    """A message, or reasoning, as it grows."""

    id: str
    output_index: int
    kind: TextKind
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)

    def opening(self) -> Iterator[WireEvent]:
        yield _item_event(self, "added", "in_progress")
        yield {"type": f"{self.kind.part_event}.added", **self._place(), "part": self._part("", ())}

    def add(self, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> WireEvent:
        self.pieces.append(text)
        self.logprobs.extend(logprobs)
        event = {"type": f"{self.kind.text_event}.delta", **self._place(), "delta": text}
        return event | {"logprobs": list(logprobs)} if self.kind is ANSWER else event

    def closing(self, status: Status) -> Iterator[WireEvent]:
        text = "".join(self.pieces)
        done = {"type": f"{self.kind.text_event}.done", **self._place(), "text": text}
        yield done | {"logprobs": self.logprobs} if self.kind is ANSWER else done
        yield {"type": f"{self.kind.part_event}.done", **self._place(), "part": self._part(text, self.logprobs)}
        yield _item_event(self, "done", status)

    def value(self, status: Status) -> dict[str, Any]:
        """The item as part of a response."""
        parts = [] if status == "in_progress" else [self._part("".join(self.pieces), self.logprobs)]
        item = {"id": self.id, "type": self.kind.item_type, "status": status}
        if self.kind is ANSWER:
            return item | {"role": "assistant", "content": parts}
        return item | {"summary": [], "content": []} | {self.kind.holder: parts} | {"encrypted_content": None}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.output_index, self.kind.index: 0}

    def _part(self, text: str, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        part = {"type": self.kind.part_type, "text": text}
        return part | {"annotations": [], "logprobs": list(logprobs)} if self.kind is ANSWER else part


@dataclass(slots=True)
class CallItem:
    """A call of a function, as its arguments grow."""

    id: str
    output_index: int
    call_id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    def opening(self) -> Iterator[WireEvent]:
        yield _item_event(self, "added", "in_progress")

    def add(self, arguments: str) -> WireEvent:
        self.pieces.append(arguments)
        return {"type": "response.function_call_arguments.delta", **self._place(), "delta": arguments}

    def closing(self, status: Status) -> Iterator[WireEvent]:
        arguments = "".join(self.pieces)
        done = {"name": self.name, "arguments": arguments}
        yield {"type": "response.function_call_arguments.done", **self._place(), **done}
        yield _item_event(self, "done", status)

    def value(self, status: Status) -> dict[str, Any]:
        """The item as part of a response."""
        arguments = "" if status == "in_progress" else "".join(self.pieces)
        called = {"call_id": self.call_id, "name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function_call", "status": status, **called}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.output_index}


Item: TypeAlias = TextItem | CallItem


def _item_event(item: Item, what: Literal["added", "done"], status: Status) -> WireEvent:
    return {
        "type": f"response.output_item.{what}",
        "output_index": item.output_index,
        "item": item.value(status),
    }
