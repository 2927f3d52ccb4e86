"""What a template can render, found out by rendering conversations with words in them that cannot be overlooked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forerun.chat.templates import ChatTemplate
from forerun.errors import InvalidRequestError

_WORD: Final = "zyxprobe"
_ARGUMENTS: Final = '{"zyxkey": "zyxvalue"}'
_USER: Final[Mapping[str, Any]] = {"role": "user", "content": "hello"}
_ANSWER: Final[Mapping[str, Any]] = {"role": "assistant", "content": "yes"}
_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": _WORD,
        "description": "probe",
        "parameters": {"type": "object", "properties": {"zyxkey": {"type": "string", "description": "key"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template makes use of."""

    supports_system: bool = True
    supports_late_system: bool = True
    """System messages behind others."""
    supports_developer: bool = False
    supports_tools: bool = True
    supports_tool_calls: bool = True
    """Calls of earlier answers, and their results."""
    wants_argument_objects: bool = False
    """Arguments of calls are to be objects: JSON text would be written as a string, with quotes escaped, or fails."""
    wants_typed_content: bool = False
    """Content is to be a list of parts: text alone would be left out, or fails."""


def capabilities_of(template: ChatTemplate) -> Capabilities:
    """Render some conversations and look."""
    late = {"role": "system", "content": _WORD}
    asked, typed = {"role": "user", "content": _WORD}, {"role": "user", "content": [{"type": "text", "text": _WORD}]}
    text_call, object_call = _rendered_call(template, _ARGUMENTS), _rendered_call(template, {"zyxkey": "zyxvalue"})
    return Capabilities(
        supports_system=_WORD in _rendered(template, [late, _USER]),
        supports_late_system=_WORD in _rendered(template, [_USER, _ANSWER, late, _USER]),
        supports_developer="developer" in template.source
        and _WORD in _rendered(template, [{"role": "developer", "content": _WORD}, _USER]),
        supports_tools=_WORD in _rendered(template, [_USER], tools=[_TOOL]),
        supports_tool_calls=_WORD in text_call or _WORD in object_call,
        wants_argument_objects=_ARGUMENTS not in text_call and "zyxkey" in object_call,
        wants_typed_content=_WORD not in _rendered(template, [asked]) and _WORD in _rendered(template, [typed]),
    )


def _rendered_call(template: ChatTemplate, arguments: str | dict[str, str]) -> str:
    call = {"id": "call00000", "type": "function", "function": {"name": _WORD, "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "call00000", "name": "result", "content": "done"}
    messages = [_USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
    return _rendered(template, messages, tools=[{**_TOOL, "function": {**_TOOL["function"], "name": "other"}}])


def _rendered(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """The text, or nothing where the template refuses."""
    try:
        return template.render(messages, tools=tools)
    except InvalidRequestError:
        return ""
