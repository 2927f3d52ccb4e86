"""Messages as OpenAI's API has them, made what chat templates expect.

Content becomes text, whatever form it had, with a mark where an item of media stands; legacy roles and fields get their
present names; arguments of calls become what the template writes well; tools, results and system messages that a
template knows nothing of are told in words.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from forerun.chat import tool_prompt
from forerun.chat.probing import Capabilities
from forerun.chat.templates import check_messages
from forerun.errors import InvalidRequestError
from forerun.media.parts import MEDIA_TYPES, is_media

Message = Mapping[str, Any]
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
MEDIA_ROLES: Final = ("user", "tool", "function")
_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")


def normalised(
    messages: Sequence[Message],
    capabilities: Capabilities,
    tools: Sequence[Mapping[str, Any]] = (),
    marks: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Messages that a template with these capabilities can render, told of tools that it cannot render itself.

    `marks`: what stands for each item of media (`media_of`). Raises InvalidRequestError naming the message.
    """
    _check(messages)
    names = _call_names(messages)
    left = iter(marks)
    changed = [
        _message(f"messages[{index}]", message, capabilities, names, left) for index, message in enumerate(messages)
    ]
    if not capabilities.supports_tool_calls:
        changed = [tool_prompt.in_words(message) for message in changed]
    if tools and not capabilities.supports_tools:
        changed = [{"role": "system", "content": tool_prompt.instructions(tools)}, *changed]
    return _with_system_placed(changed, capabilities)


def _check(messages: Sequence[Message]) -> None:
    check_messages(messages)
    for index, message in enumerate(messages):
        if message["role"] not in ROLES:
            raise InvalidRequestError(f"messages[{index}].role", f"is {message['role']!r}; it is one of {ROLES}")


def _message(
    field: str, message: Message, capabilities: Capabilities, names: Mapping[str, str], marks: Iterator[str]
) -> dict[str, Any]:
    changed = {name: value for name, value in message.items() if value is not None and name != "function_call"}
    changed["role"] = _role(message["role"], capabilities)
    changed["content"] = _text_of(field, message, marks)
    reasoning = next((message[key] for key in _REASONING_KEYS if isinstance(message.get(key), str)), None)
    if reasoning:
        changed["reasoning_content"] = changed["thinking"] = reasoning
    calls = _calls(field, message, capabilities)
    changed.pop("tool_calls", None)
    if calls:
        changed["tool_calls"] = calls
    call_id = message.get("tool_call_id")
    if changed["role"] == "tool" and not message.get("name") and isinstance(call_id, str) and call_id in names:
        changed["name"] = names[call_id]
    return changed


def _role(role: str, capabilities: Capabilities) -> str:
    if role == "developer" and not capabilities.supports_developer:
        return "system"
    return "tool" if role == "function" else role


def _text_of(field: str, message: Message, marks: Iterator[str]) -> str:
    """A message's content as text: parts joined, none as empty. Raises InvalidRequestError for what is no text."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"{field}.content", f"is text or a list of parts, got {type(content).__name__}")
    runs: list[list[str]] = [[]]
    between: list[str] = []
    for index, part in enumerate(content):
        if is_media(part):
            between.append(_mark(f"{field}.content[{index}]", message["role"], marks))
            runs.append([])
        else:
            runs[-1].append(_part(f"{field}.content[{index}]", part))
    texts = [joined(run) for run in runs]
    return "".join(itertools.chain.from_iterable(itertools.zip_longest(texts, between, fillvalue="")))


def _mark(field: str, role: str, marks: Iterator[str]) -> str:
    if role not in MEDIA_ROLES:
        raise InvalidRequestError(
            field, f"images and recordings belong to messages of the user or of tools, not of {role!r}"
        )
    return next(marks)


def joined(texts: Sequence[str]) -> str:
    """Parts of one message as one text: a line each, so that words do not grow together; the same for every API.

    No line is put between a text and an image or recording beside it: models were trained without one.
    """
    return "\n".join(texts)


def _part(field: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequestError(field, f"is an object with a 'type', got {type(part).__name__}")
    key = _TEXT_PARTS.get(str(part.get("type")))
    if key is None:
        known = ", ".join([*_TEXT_PARTS, *MEDIA_TYPES])
        raise InvalidRequestError(field, f"is of type {part.get('type')!r}; it is one of {known}")
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidRequestError(f"{field}.{key}", f"is text, got {type(text).__name__}")
    return text


def _call_names(messages: Sequence[Message]) -> dict[str, str]:
    """Names of the functions called, by the ids of the calls."""
    names = {}
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping) and isinstance(call.get("id"), str):
                names[call["id"]] = str(function.get("name"))
    return names


def _calls(field: str, message: Message, capabilities: Capabilities) -> list[dict[str, Any]]:
    given = message.get("tool_calls")
    legacy = message.get("function_call")
    if given is None and legacy is not None:
        given, field = [{"type": "function", "function": legacy}], f"{field}.function_call"
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidRequestError(f"{field}.tool_calls", f"is a list of calls, got {type(given).__name__}")
    return [_call(f"{field}.tool_calls[{index}]", call, capabilities) for index, call in enumerate(given)]


def _call(field: str, call: object, capabilities: Capabilities) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(field, "expected an object with a 'function' that has a text 'name'")
    arguments = _arguments(function.get("arguments"), as_object=capabilities.wants_argument_objects)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _arguments(given: object, *, as_object: bool) -> object:
    """Arguments in the form the template writes well; what is no JSON stays the text it is."""
    if given is None or given == "":
        given = {}
    if isinstance(given, str) and as_object:
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given
    if not isinstance(given, str) and not as_object:
        return json.dumps(given, ensure_ascii=False)
    return given


def _with_system_placed(messages: list[dict[str, Any]], capabilities: Capabilities) -> list[dict[str, Any]]:
    """System messages where the template takes them: anywhere, first and as one, or as part of the user's words."""
    system = [message for message in messages if message["role"] in ("system", "developer")]
    if not system:
        return messages
    if capabilities.supports_system and (capabilities.supports_late_system or system == messages[:1]):
        return messages
    others = [message for message in messages if message["role"] not in ("system", "developer")]
    text = "\n\n".join(message["content"] for message in system)
    if capabilities.supports_system:
        return [{**system[0], "content": text}, *others]
    if others and others[0]["role"] == "user":
        return [{**others[0], "content": f"{text}\n\n{others[0]['content']}"}, *others[1:]]
    return [{"role": "user", "content": text}, *others]
