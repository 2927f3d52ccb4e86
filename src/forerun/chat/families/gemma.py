"""Gemma: calls as Python in a `tool_code` fence, or as JSON; its templates know no tools."""

from __future__ import annotations

import ast
import json
from typing import Any, Final

from forerun.chat.call_reading import read_calls
from forerun.chat.families.bare_json import FENCE, read_leading_calls
from forerun.chat.families.family import Tools
from forerun.chat.reading import Answer, Reading, Source

_CODE: Final = "```tool_code"
_JSON: Final = ("```json", "```tool_call")
_MAX_CODE: Final = 100_000  # characters that are parsed as Python; what is longer is content


def read(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    yield from read_leading_calls(source, answer, tools)
    while marker := (yield from source.until((_CODE, *_JSON), answer.content)):
        source.record(marker)
        if marker == _CODE:
            yield from _read_code(source, answer, tools)
        else:
            yield from _read_json(source, answer, tools)


def _read_json(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    """Calls behind an opened fence; anything else is content."""
    yield from source.skip_space()
    if (yield from read_calls(source, answer, tools)):
        yield from source.took(FENCE)


def _read_code(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    """Calls in Python: told once the fence is closed, since only then it is known what they are."""
    code: list[str] = []
    closed = yield from source.until((FENCE,), code.append)
    calls = python_calls("".join(code), tools) if closed else None
    if calls is None:
        answer.content("".join([_CODE, *code, closed]))
        return
    for name, arguments in calls:
        answer.call(name)
        answer.arguments(json.dumps(arguments, ensure_ascii=False))
    answer.break_off()


def python_calls(code: str, tools: Tools) -> list[tuple[str, dict[str, Any]]] | None:
    """Calls of known tools, in a list, in `print` or a line each, with literal arguments by name. None: it is not that.

    Positional arguments get the names of the tool's parameters in order.
    """
    if len(code) > _MAX_CODE:
        return None
    try:
        body = ast.parse(code.strip()).body
        return [found for statement in body for found in _calls_of(_expression(statement), tools)] or None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _expression(statement: ast.stmt) -> ast.expr:
    if not isinstance(statement, ast.Expr | ast.Assign):
        raise ValueError("not an expression")
    assert statement.value is not None
    return statement.value


def _calls_of(node: ast.expr, tools: Tools) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(node, ast.List):
        return [found for element in node.elts for found in _calls_of(element, tools)]
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = ast.unparse(node.func)
    if name == "print" and name not in tools:
        return [found for argument in node.args for found in _calls_of(argument, tools)]
    if name not in tools:
        raise ValueError("not a tool")
    return [(name, _arguments(node, list(_parameters(tools, name))))]


def _parameters(tools: Tools, name: str) -> Any:
    properties = (tools[name].parameters or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _arguments(node: ast.Call, names: list[str]) -> dict[str, Any]:
    if len(node.args) > len(names) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("arguments without names")
    values = dict(zip(names, node.args, strict=False)) | {str(one.arg): one.value for one in node.keywords}
    return {name: ast.literal_eval(value) for name, value in values.items()}
