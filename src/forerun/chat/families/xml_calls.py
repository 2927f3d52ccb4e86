"""Qwen3-Coder's notation: `<function=name><parameter=key>value</parameter></function>`, made JSON as it comes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from forerun.chat.families.family import Tools
from forerun.chat.reading import Answer, Reading, Source

FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
PARAMETER: Final = "<parameter="
PARAMETER_END: Final = "</parameter>"
_CALL_END: Final = "</tool_call>"


def read_function(source: Source, answer: Answer, tools: Tools) -> Reading[bool]:
    """One call behind `<function=`. False: it is none, and became content."""
    name = yield from _read_name(source)
    if not name:
        answer.content(source.recorded)
        return False
    answer.call(name)
    answer.arguments("{")
    properties = _properties(tools, name)
    separator = ""
    while (yield from _begins_parameter(source)):
        key = yield from _read_name(source)
        answer.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        yield from _read_argument(source, answer, properties.get(key))
        separator = ", "
    if (yield from source.peek()):  # else it was cut off, and stays so
        answer.arguments("}")
        yield from source.took(FUNCTION_END)
    return True


def _begins_parameter(source: Source) -> Reading[bool]:
    yield from source.skip_space()
    return (yield from source.took(PARAMETER))


def _read_name(source: Source) -> Reading[str]:
    """A name up to `>`; empty where the line ends without one."""
    name = ""
    while char := (yield from source.next()):
        if char == ">":
            return name.strip()
        if char in "\n<":
            source.unread(char)
            return ""
        name += char
    return ""


def _properties(tools: Tools, name: str) -> Mapping[str, Any]:
    tool = tools.get(name)
    found = tool.parameters.get("properties") if tool is not None and tool.parameters is not None else None
    return found if isinstance(found, Mapping) else {}


def _read_argument(source: Source, answer: Answer, schema: object) -> Reading[None]:
    """A value: of a text as it comes, of anything else once it is whole. A line break at either end is layout."""
    yield from source.took("\n")
    if not _is_text(schema):
        yield from _read_typed(source, answer)
        return
    answer.arguments('"')
    held = ""

    def write(text: str) -> None:
        nonlocal held
        text = held + text
        held = "\n" if text.endswith("\n") else ""
        answer.arguments(_escaped(text[: len(text) - len(held)]))

    if (yield from source.until((PARAMETER_END, FUNCTION_END, _CALL_END), write)):
        answer.arguments('"')


def _read_typed(source: Source, answer: Answer) -> Reading[None]:
    parts: list[str] = []
    if not (yield from source.until((PARAMETER_END, FUNCTION_END, _CALL_END), parts.append)):
        return
    text = "".join(parts).strip()
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        text = {"True": "true", "False": "false", "None": "null"}.get(text, json.dumps(text, ensure_ascii=False))
    answer.arguments(text)


def _is_text(schema: object) -> bool:
    """Whether a value is to be taken as it is written. What no schema speaks of is."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind is None:
        return not isinstance(schema, Mapping) or not (
            schema.keys() & {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"}
        )
    return bool(kind == "string")


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
