"""Tools in words, for models whose template knows none: the answer is read by the generic format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

_INTRODUCTION: Final = "You can call these functions, given as JSON:"
_HOW_TO: Final = (
    "To call functions, answer with nothing but a JSON object of this form:\n"
    '{"tool_calls": [{"name": "<function name>", "arguments": {<arguments as an object>}}]}\n'
    "What they return comes in the next message. When no function is needed, answer in plain text."
)


def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    """The part of a system message that tells of tools, given as OpenAI's API has them."""
    functions = [tool.get("function", tool) for tool in tools]
    lines = [json.dumps(function, ensure_ascii=False) for function in functions]
    return "\n".join([_INTRODUCTION, *lines, "", _HOW_TO])


def in_words(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without calls and tool roles: calls as the model was told to write them, results as a user's words."""
    if message["role"] == "tool":
        result = {"tool_result": {"name": message.get("name"), "content": message["content"]}}
        return {"role": "user", "content": json.dumps(result, ensure_ascii=False)}
    changed = dict(message)
    calls = changed.pop("tool_calls", None)
    if calls:
        written = json.dumps({"tool_calls": [_written(call["function"]) for call in calls]}, ensure_ascii=False)
        changed["content"] = "\n".join(filter(None, [message["content"], written]))
    return changed


def _written(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {"name": function["name"], "arguments": arguments}
