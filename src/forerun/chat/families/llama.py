"""Llama 3.x: `{"name": ..., "parameters": {...}}`, several with `;` between; `<|python_tag|>` before calls or code."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from forerun.chat.call_reading import read_calls
from forerun.chat.families.bare_json import read_leading_calls
from forerun.chat.families.family import Tools
from forerun.chat.families.lark import CallSyntax, json_call
from forerun.chat.reading import END, Answer, Reading, Source

PYTHON_TAG: Final = "<|python_tag|>"
SYNTAX: Final = CallSyntax((), partial(json_call, arguments_key="parameters"), ("; ",))
_INTERPRETERS: Final = ("code_interpreter", "ipython", "python")
"""Names under which a tool is given the code that comes behind the tag."""


def read(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    yield from read_leading_calls(source, answer, tools)
    while (yield from source.until((PYTHON_TAG,), answer.content)):
        source.record(PYTHON_TAG)
        yield from source.skip_space()
        interpreter = next((name for name in _INTERPRETERS if name in tools), None)
        if (yield from source.peek()) == "{" or interpreter is None:
            yield from read_calls(source, answer)
        else:
            yield from _read_code(source, answer, interpreter)


def _read_code(source: Source, answer: Answer, interpreter: str) -> Reading[None]:
    """All that is left is code."""
    answer.call(interpreter)
    answer.arguments('{"code": "')
    while (char := (yield from source.next())) != END:
        answer.arguments(json.dumps(char, ensure_ascii=False)[1:-1])
    answer.arguments('"}')
