"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, and since 2025 `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

from typing import Final

from forerun.chat.call_reading import read_calls, read_value
from forerun.chat.families.family import Thinking, Tools
from forerun.chat.families.lark import CallSyntax, Controls, arguments, json_call, literals
from forerun.chat.formats import Tool
from forerun.chat.reading import END, Answer, Reading, Source

CALLS: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
THINK: Final = Thinking("[THINK]", "[/THINK]")


def _named_call(tool: Tool, controls: Controls) -> str:
    return f"{literals([tool.name, ARGUMENTS], controls)} {arguments(tool)}"


LIST_SYNTAX: Final = CallSyntax((CALLS, "["), json_call, (", ",), ("]",))
NAMED_SYNTAX: Final = CallSyntax((CALLS,), _named_call, (CALLS,))


def read(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    del tools
    while (yield from source.until((CALLS,), answer.content)):
        source.record(CALLS)
        yield from source.skip_space()
        if (yield from source.peek()) in ("[", "{"):
            yield from read_calls(source, answer)
        else:
            yield from _read_named(source, answer)


def _read_named(source: Source, answer: Answer) -> Reading[None]:
    """A name, an id of its own where the model gives one, and the arguments."""
    name = (yield from _text_before(source, "[{\n")).strip()
    if (yield from source.took(CALL_ID)):
        yield from _text_before(source, "[{\n")
    yield from source.took(ARGUMENTS)
    yield from source.skip_space()
    if not name or (yield from source.peek()) != "{":
        answer.content(source.recorded)
        return
    answer.call(name)
    yield from read_value(source, answer.arguments)
    answer.break_off()


def _text_before(source: Source, ends: str) -> Reading[str]:
    text = ""
    while (char := (yield from source.peek())) != END and char not in ends:
        text += yield from source.next()
    return text
