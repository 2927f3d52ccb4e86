"""Hermes, Qwen 2.5 and 3, and many others: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from typing import Final

from forerun.chat.call_reading import read_calls
from forerun.chat.families.family import Tools
from forerun.chat.families.lark import CallSyntax, json_call
from forerun.chat.families.xml_calls import FUNCTION, read_function
from forerun.chat.reading import Answer, Reading, Source

CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
SYNTAX: Final = CallSyntax((CALL, "\n"), json_call, ("\n", CALL_END, "\n", CALL, "\n"), ("\n", CALL_END))


def read(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    """Calls of either notation: some Qwen models are told the one and write the other."""
    while marker := (yield from source.until((CALL, FUNCTION), answer.content)):
        source.record(marker)
        if marker == CALL:
            yield from source.skip_space()
        if marker == FUNCTION or (yield from source.took(FUNCTION)):
            found = yield from read_function(source, answer, tools)
        else:
            found = yield from read_calls(source, answer)
        if found:
            yield from source.skip_space()
            yield from source.took(CALL_END)
