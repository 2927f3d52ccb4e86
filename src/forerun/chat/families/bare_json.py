"""Calls that are the whole answer, as JSON: Llama 3, and models that were told of tools by Forerun's own prompt."""

from __future__ import annotations

from typing import Final

from forerun.chat.call_reading import read_calls
from forerun.chat.families import hermes
from forerun.chat.families.family import Tools
from forerun.chat.families.lark import CallSyntax, json_call
from forerun.chat.reading import Answer, Reading, Source

FENCE: Final = "```"
SYNTAX: Final = CallSyntax((), json_call, (", ",), ("]}",), prefix=('{"tool_calls": [',))
_LISTS: Final = ('"tool_calls"', '"tool_call"')


def read(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    """An answer that begins with a call of a known tool, in a code fence or not; or with calls in `<tool_call>`."""
    yield from read_leading_calls(source, answer, tools)
    yield from hermes.read(source, answer, tools)


def read_leading_calls(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    """Calls at the start of what comes. An object that is none, with other keys or an unknown name, is content."""
    source.record()
    yield from source.skip_space()
    mark = source.mark
    is_fenced = yield from _opens_fence(source)
    if not is_fenced:
        source.rewind(mark)
    if (yield from source.peek()) not in ("{", "["):
        source.rewind(0)
        return
    yield from _unwrap(source)
    if (yield from read_calls(source, answer, tools)) and is_fenced:
        yield from source.took(FENCE)


def _opens_fence(source: Source) -> Reading[bool]:
    if not (yield from source.took(FENCE)):
        return False
    while (char := (yield from source.peek())).isalpha() or char == "_":
        yield from source.next()
    yield from source.skip_space()
    return (yield from source.peek()) in ("{", "[")


def _unwrap(source: Source) -> Reading[None]:
    """Step into `{"tool_calls": ...}`; of anything else nothing is taken."""
    mark = source.mark
    yield from source.took("{")
    yield from source.skip_space()
    for key in _LISTS:
        if (yield from source.took(key)):
            yield from source.skip_space()
            if (yield from source.took(":")):
                return
    source.rewind(mark)
