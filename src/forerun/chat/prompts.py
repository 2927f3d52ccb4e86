"""From a conversation and tools to the text of a prompt, for one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Final

from forerun.chat.formats import Tool
from forerun.chat.media_marks import without_marks
from forerun.chat.messages import Message, normalised
from forerun.chat.probing import Capabilities, capabilities_of
from forerun.chat.safe_text import ForgeryGuard, unused_characters
from forerun.chat.templates import ChatTemplate, check_messages
from forerun.core.prompt_text import PromptText
from forerun.errors import InvalidRequestError
from forerun.media.parts import media_of

_NO_NAMES: Final[Mapping[str, Any]] = {}
_ANY_OBJECT: Final = {"type": "object", "properties": {}}
_CUT: Final = "\U0010fffd"  # private use: stands where the message to be continued ends


class PromptWriter:
    """Writes prompts with one model's template. Implements engine.parts.ChatRenderer; any thread.

    `controls`: the vocabulary's control tokens, spelling to id. What spells one in messages or tools stays text.
    """

    def __init__(self, template: ChatTemplate, controls: Mapping[str, int] | None = None) -> None:
        self.template = template
        self.controls = dict(controls or {})
        self._guard = ForgeryGuard(self.controls)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the template makes use of."""
        return capabilities_of(self.template)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] = _NO_NAMES,
    ) -> PromptText:
        """A conversation, ready for the answer: tokenise it with Tokenizer.tokenize, which keeps plain what is.

        Items of media in it (`media.parts.media_of`) are where the text says, and not in it.
        `continue_final_message` ends the text within the last message, which the answer goes on with. `template_kwargs`
        are further names for the template. Raises InvalidRequestError naming the message or the name.
        """
        known = [as_function(tool) for tool in tools]
        marks = self._marks(messages, known, template_kwargs)
        changed = normalised(messages, self.capabilities, known, marks)
        if continue_final_message:
            changed = _with_cut(changed)
        if self.capabilities.wants_typed_content:
            changed = [{**message, "content": _typed(message["content"])} for message in changed]
        shown = known if self.capabilities.supports_tools and known else None

        def render(values: Any) -> str:
            text = self.template.render(
                values[0],
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                tools=values[1],
                names=values[2],
            )
            return _before_cut(text) if continue_final_message else text

        text = self._guard.render(render, [changed, shown, dict(template_kwargs)], self.template.source)
        return without_marks(text, marks)

    def _marks(self, messages: Sequence[Message], *others: object) -> list[str]:
        """A character for each item of media."""
        check_messages(messages)
        count = len(media_of(messages))
        if not count:
            return []
        return list(islice(unused_characters([*messages, *others], self.template.source), count))

    def __repr__(self) -> str:
        return f"PromptWriter({self.template!r}, {len(self.controls)} control tokens)"


def as_function(tool: Tool) -> dict[str, Any]:
    """A tool as templates expect it."""
    parameters = _ANY_OBJECT if tool.parameters is None else tool.parameters
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _typed(text: str) -> list[dict[str, str]]:
    """Content as a list of one part."""
    return [{"type": "text", "text": text}]


def _with_cut(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise InvalidRequestError(
            "messages", "to be continued, the last message must be the assistant's, without calls"
        )
    return [*messages[:-1], {**last, "content": last["content"] + _CUT}]


def _before_cut(text: str) -> str:
    before, found, _ = text.rpartition(_CUT)
    if not found:
        raise InvalidRequestError(
            "messages", "the model's chat template does not write the last message to be continued"
        )
    return before
