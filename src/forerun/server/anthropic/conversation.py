"""From Anthropic's messages of blocks to a conversation as chat templates know it, with its pins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from forerun.errors import InvalidRequestError
from forerun.media.kind import MediaKind
from forerun.media.sources import Base64, MediaSource, Url
from forerun.server.anthropic.thinking import thinking_of
from forerun.server.jobs import Message, Pin
from forerun.server.turns import AssistantTurn, Part, content_of, tool_message
from forerun.server.wire.messages import (
    Base64Image,
    Block,
    CacheControl,
    CountTokensRequest,
    ImageAt,
    ImageBlock,
    Shown,
    TextBlock,
    TextOnly,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

MAX_BREAKPOINTS: Final = 4
_SECONDS: Final = {None: 300.0, "5m": 300.0, "1h": 3600.0}


class Conversation:
    """Messages as they are put together from blocks, and what is to be pinned of them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.pins: list[Pin] = []
        self._role = ""
        self._parts: list[Part] = []
        """What the user or the system says and shows, in a message that has not ended."""
        self._turn = AssistantTurn()
        self._names: dict[str, str] = {}
        self._marks: list[CacheControl] = []
        """Of blocks whose message has not ended."""
        self._breakpoints = 0

    def begin(self, role: str) -> None:
        """What follows is said by `role`. Neighbours of one role are one turn."""
        if role != self._role:
            self.end_message()
            self._role = role

    def add(self, block: Block | TextOnly, path: str) -> None:
        """One more block of the turn. Raises InvalidRequestError where it has no place in it."""
        match block:
            case TextBlock():
                self._add_text(block.text)
            case ImageBlock():
                self._require("user", path, "image")
                self._parts.append(source_of(block, path))
            case ThinkingBlock():
                self._require("assistant", path, "thinking")
                self._add_thinking(block)
            case ToolUseBlock():
                self._require("assistant", path, "tool_use")
                self._turn.call(block.id, block.name, msgspec.json.encode(block.input).decode())
                self._names[block.id] = block.name
            case ToolResultBlock():
                self._require("user", path, "tool_result")
                self._add_result(block, path)
        self.mark(getattr(block, "cache_control", None))

    def mark(self, control: CacheControl | None) -> None:
        """What has been added so far is to be pinned, to the end of its message."""
        if control is None:
            return
        self._breakpoints += 1
        if self._breakpoints > MAX_BREAKPOINTS:
            raise InvalidRequestError(
                "cache_control", f"at most {MAX_BREAKPOINTS} blocks may have it, got {self._breakpoints}"
            )
        self._marks.append(control)
        if not self._parts and self._turn.is_empty:
            self._pin_marked()

    def end_message(self) -> None:
        """What has been added is a message now."""
        if self._parts:
            self.messages.append({"role": self._role, "content": content_of(self._parts)})
            self._parts = []
        if not self._turn.is_empty:
            self.messages.append(self._turn.message())
            self._turn = AssistantTurn()
        self._pin_marked()

    def _pin_marked(self) -> None:
        self.pins += [Pin(len(self.messages), _SECONDS[mark.ttl]) for mark in self._marks]
        self._marks = []

    def _add_text(self, text: str) -> None:
        if self._role != "assistant":
            self._parts.append(text)
            return
        if self._turn.calls:
            self.end_message()
        self._turn.texts.append(text)

    def _add_thinking(self, block: ThinkingBlock) -> None:
        if self._turn.texts or self._turn.calls:
            self.end_message()
        self._turn.reasoning.append(thinking_of(block))

    def _add_result(self, block: ToolResultBlock, path: str) -> None:
        name = self._names.get(block.tool_use_id)
        if name is None:
            raise InvalidRequestError(
                f"{path}.tool_use_id", f"{block.tool_use_id[:100]!r} is of no tool_use before it; send that, too"
            )
        self.end_message()
        content = (
            block.content if isinstance(block.content, list) else [TextBlock(type="text", text=block.content or "")]
        )
        parts = [_part(part, f"{path}.content[{index}]") for index, part in enumerate(content)]
        self.messages.append(tool_message(block.tool_use_id, name, _as_error(parts) if block.is_error else parts))

    def _require(self, role: str, path: str, kind: str) -> None:
        if self._role != role:
            raise InvalidRequestError(path, f"{kind} blocks belong to messages of the {role}")


def _part(block: Shown, path: str) -> Part:
    match block:
        case TextBlock():
            return block.text
        case ImageBlock():
            return source_of(block, path)
        case _:  # refused when it was read
            raise AssertionError(block)


def _as_error(parts: Sequence[Part]) -> Sequence[Part]:
    first = parts[0] if parts else ""
    return [f"Error: {first}", *parts[1:]] if isinstance(first, str) else ["Error: ", *parts]


def source_of(block: ImageBlock, path: str) -> MediaSource:
    """Where an image is."""
    match block.source:
        case Base64Image(data=data):
            return MediaSource(MediaKind.IMAGE, f"{path}.source.data", Base64(data))
        case ImageAt(url=url):
            return MediaSource(MediaKind.IMAGE, f"{path}.source.url", Url(url))
        case _:  # refused when it was read
            raise AssertionError(block)


def conversation_of(body: CountTokensRequest) -> Conversation:
    """The conversation that a request is about. Raises InvalidRequestError, naming the block."""
    conversation = Conversation()
    for tool in body.tools or ():
        conversation.mark(tool.cache_control)
    _add(conversation, "system", body.system or [], "system")
    for index, message in enumerate(body.messages):
        _add(conversation, message.role, message.content, f"messages[{index}].content")
    conversation.mark(body.cache_control)
    conversation.end_message()
    if body.messages[-1].role == "assistant":
        raise InvalidRequestError(
            f"messages[{len(body.messages) - 1}]", "an answer cannot be begun for the model; end with a user message"
        )
    if not conversation.messages or conversation.messages[-1]["role"] == "system":
        raise InvalidRequestError("messages", "hold nothing to answer; end with a user message")
    return conversation


def _add(conversation: Conversation, role: str, content: str | Sequence[Block | TextOnly], path: str) -> None:
    conversation.begin(role)
    if isinstance(content, str):
        conversation.add(TextBlock(type="text", text=content), path)
        return
    for index, block in enumerate(content):
        conversation.add(block, f"{path}[{index}]")
