"""Messages as chat templates expect them, put together from the pieces in which other APIs send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from forerun.chat.messages import joined
from forerun.media.parts import media_part
from forerun.media.sources import MediaSource
from forerun.server.jobs import Message

Part: TypeAlias = str | MediaSource
"""What a user or a tool shows."""


def content_of(parts: Sequence[Part]) -> str | list[Mapping[str, Any]]:
    """The content of a message: text where there is nothing else."""
    texts = [part for part in parts if isinstance(part, str)]
    return joined(texts) if len(texts) == len(parts) else [_template_part(part) for part in parts]


def _template_part(part: Part) -> Mapping[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else media_part(part.kind, part)


@dataclass(slots=True)
class AssistantTurn:
    """What an assistant said, thought and called, before anybody answered."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """`arguments`: JSON text."""
        function = {"name": name, "arguments": arguments}
        self.calls.append({"id": call_id, "type": "function", "function": function})

    @property
    def is_empty(self) -> bool:
        return not (self.texts or self.reasoning or self.calls)

    def message(self) -> Message:
        message: dict[str, Any] = {"role": "assistant", "content": joined(self.texts)}
        if self.reasoning:
            message["reasoning_content"] = joined(self.reasoning)
        if self.calls:
            message["tool_calls"] = list(self.calls)
        return message


def tool_message(call_id: str, name: str | None, parts: Sequence[Part]) -> Message:
    """What a called tool gave."""
    message = {"role": "tool", "tool_call_id": call_id, "content": content_of(parts)}
    return message if name is None else message | {"name": name}
