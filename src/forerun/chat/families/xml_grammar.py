"""The grammar of Qwen3-Coder's calls: parameters in the order of the schema, each value by its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from forerun.chat.families.hermes import CALL, CALL_END
from forerun.chat.families.lark import CallSyntax, Controls, literals, schema
from forerun.chat.families.xml_calls import FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END
from forerun.chat.formats import Tool

_ANY_NAME: Final = "/[^>\\n]+/"
_VALUE_END: Final = f"\n{PARAMETER_END}\n"
_TEXT_VALUE: Final = f"/(.|\\n)*{_VALUE_END.replace('/', chr(92) + '/').replace(chr(10), chr(92) + 'n')}/"


def _xml_call(tool: Tool, controls: Controls) -> str:
    given = tool.parameters or {}
    properties = given.get("properties")
    start = literals([f"{FUNCTION}{tool.name}>\n"], controls)
    if not isinstance(properties, Mapping) or not properties:
        parameters = f"({json.dumps(PARAMETER)} {_ANY_NAME} {json.dumps('>' + chr(10))} text_value)*"
    else:
        required = given.get("required") or ()
        rows = [_parameter(name, one, tool, is_required=name in required) for name, one in properties.items()]
        parameters = " ".join(rows)
    return f"{start} {parameters} {literals([FUNCTION_END], controls)}"


def _parameter(name: str, given: Any, tool: Tool, *, is_required: bool) -> str:
    start = json.dumps(f"{PARAMETER}{name}>\n")
    if _is_free_text(given):
        row = f"({start} text_value)"
    else:
        shared = {key: value for key, value in (tool.parameters or {}).items() if key in ("$defs", "definitions")}
        value = {**given, **shared} if isinstance(given, Mapping) else {}
        row = f"({start} {_value(value, is_strict=tool.strict)} {json.dumps(_VALUE_END)})"
    return row if is_required else f"{row}?"


def _value(given: Mapping[str, Any], *, is_strict: bool) -> str:
    """Texts of a closed set stand without quotes, as values do here."""
    choices = given.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) and choice for choice in choices):
        return f"({' | '.join(json.dumps(choice) for choice in choices)})"
    return schema(given, is_strict=is_strict)


def _is_free_text(given: Any) -> bool:
    return isinstance(given, Mapping) and given.get("type") == "string" and "enum" not in given


SYNTAX: Final = CallSyntax(
    (CALL, "\n"),
    _xml_call,
    ("\n", CALL_END, "\n", CALL, "\n"),
    ("\n", CALL_END),
    rules=(f"text_value[lazy]: {_TEXT_VALUE}",),
)
