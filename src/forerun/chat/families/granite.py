"""Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}]`; newer ones write as Hermes does."""

from __future__ import annotations

from typing import Final

from forerun.chat.call_reading import read_calls
from forerun.chat.families.family import Tools
from forerun.chat.families.hermes import CALL, CALL_END
from forerun.chat.families.lark import CallSyntax, json_call
from forerun.chat.reading import Answer, Reading, Source

GRANITE_CALL: Final = "<|tool_call|>"
SYNTAX: Final = CallSyntax((GRANITE_CALL, "["), json_call, (", ",), ("]",))


def read(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    del tools
    while marker := (yield from source.until((GRANITE_CALL, CALL), answer.content)):
        source.record(marker)
        if (yield from read_calls(source, answer)):
            yield from source.took(CALL_END)
