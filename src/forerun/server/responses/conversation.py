"""From the items of a request's input to the messages of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from forerun.chat.messages import joined
from forerun.errors import InvalidRequestError
from forerun.media.kind import MediaKind
from forerun.media.sources import MediaSource, Url
from forerun.server.jobs import Message, Pin
from forerun.server.turns import AssistantTurn, content_of, tool_message
from forerun.server.wire.responses import (
    FunctionCallItem,
    FunctionOutputItem,
    ImagePart,
    InputItem,
    MessageItem,
    Part,
    ReasoningItem,
    RefusalPart,
    ResponsesRequest,
    TextPart,
)

SECONDS: Final = {"30m": 1800.0, "12h": 43_200.0}
"""Lifetimes of what is pinned."""
_INSTRUCTING: Final = ("system", "developer")


class Conversation:
    """Messages as they are put together from items, and what is to be pinned of them."""

    def __init__(self, instructions: str | None, default_ttl: str) -> None:
        self.messages: list[Message] = []
        self.pins: list[Pin] = []
        self._turn = AssistantTurn()
        self._names: dict[str, str] = {}
        self._default_ttl = default_ttl
        if instructions:
            self.messages.append({"role": "system", "content": instructions})

    def add(self, item: InputItem, path: str) -> None:
        """One more item. Raises InvalidRequestError for the output of a call that nobody made."""
        match item:
            case MessageItem(role="assistant"):
                self._add_answer(_texts(item, path))
            case MessageItem():
                self.end_turn()
                self._add_message(item, path)
            case FunctionCallItem():
                self._turn.call(item.call_id, item.name, item.arguments)
                self._names[item.call_id] = item.name
            case FunctionOutputItem():
                self.end_turn()
                self._add_output(item, path)
            case ReasoningItem():
                self._add_reasoning(item)
        self._add_pins(item)

    def end_turn(self) -> None:
        """What the assistant said is a message now."""
        if not self._turn.is_empty:
            self.messages.append(self._turn.message())
            self._turn = AssistantTurn()

    def _add_message(self, item: MessageItem, path: str) -> None:
        if item.role == "user":
            self.messages.append({"role": item.role, "content": content_of(parts(item.content, f"{path}.content"))})
            return
        text = joined(_texts(item, path))
        # Templates know one system message, at the start: instructions and what follows them at once are one.
        if len(self.messages) == 1 and self.messages[0]["role"] in _INSTRUCTING:
            text = f"{self.messages.pop()['content']}\n\n{text}"
        self.messages.append({"role": item.role, "content": text})

    def _add_answer(self, said: Sequence[str]) -> None:
        if self._turn.calls:
            self.end_turn()
        self._turn.texts += said

    def _add_reasoning(self, item: ReasoningItem) -> None:
        if self._turn.texts or self._turn.calls:
            self.end_turn()
        self._turn.reasoning += [part.text for part in item.content or item.summary]

    def _add_output(self, item: FunctionOutputItem, path: str) -> None:
        name = self._names.get(item.call_id)
        if name is None:
            raise InvalidRequestError(
                f"{path}.call_id", f"{item.call_id[:100]!r} is of no function_call before it; send the call, too"
            )
        self.messages.append(tool_message(item.call_id, name, parts(item.output, f"{path}.output")))

    def _add_pins(self, item: Any) -> None:
        content = getattr(item, "content", None) or getattr(item, "output", None)
        for part in content if isinstance(content, list) else ():
            mark = getattr(part, "prompt_cache_breakpoint", None)
            if mark is not None:
                # What an assistant says is a message only once its turn has ended.
                count = len(self.messages) + (not self._turn.is_empty)
                self.pins.append(Pin(count, SECONDS[mark.ttl or self._default_ttl]))


def parts(content: str | Sequence[Part], path: str) -> list[str | MediaSource]:
    """What the parts of a message say and show. Raises InvalidRequestError, naming the part."""
    if isinstance(content, str):
        return [content]
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _texts(item: MessageItem, path: str) -> list[str]:
    """What a message says that shows nothing. Raises InvalidRequestError for an image."""
    texts = []
    for part in parts(item.content, f"{path}.content"):
        if isinstance(part, MediaSource):
            said = f"belongs to messages of the user and to outputs of functions, not to messages of {item.role!r}"
            raise InvalidRequestError(part.field, said)
        texts.append(part)
    return texts


def _part(part: Part, path: str) -> str | MediaSource:
    match part:
        case TextPart():
            return part.text
        case RefusalPart():
            return part.refusal
        case ImagePart():
            if part.image_url is None:
                raise InvalidRequestError(f"{path}.image_url", "is required for the type input_image")
            return MediaSource(MediaKind.IMAGE, f"{path}.image_url", Url(part.image_url))
        case _:  # refused when it was read
            raise AssertionError(part)


def conversation_of(body: ResponsesRequest) -> Conversation:
    """The conversation that a request is about. Raises InvalidRequestError, naming the item."""
    ttl = body.prompt_cache_options.ttl if body.prompt_cache_options is not None else None
    conversation = Conversation(body.instructions, ttl or "30m")
    items: Sequence[InputItem] = (
        [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    )
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    conversation.end_turn()
    return conversation
