"""DeepSeek: R1 and V3 write `function<sep>name` and a fenced object, V3.1 `name<sep>{...}`."""

from __future__ import annotations

from typing import Final

from forerun.chat.call_reading import read_value
from forerun.chat.families.family import Tools
from forerun.chat.families.lark import CallSyntax, Controls, arguments, literals
from forerun.chat.formats import Tool
from forerun.chat.reading import Answer, Reading, Source

CALLS: Final = "<｜tool▁calls▁begin｜>"
CALLS_END: Final = "<｜tool▁calls▁end｜>"
CALL: Final = "<｜tool▁call▁begin｜>"
CALL_END: Final = "<｜tool▁call▁end｜>"
SEPARATOR: Final = "<｜tool▁sep｜>"
_KIND: Final = "function"
_FENCE: Final = "```"
_FENCE_END: Final = "\n```"


def _fenced_call(tool: Tool, controls: Controls) -> str:
    start = literals([_KIND, SEPARATOR, f"{tool.name}\n{_FENCE}json\n"], controls)
    return f"{start} {arguments(tool)} {literals([_FENCE_END], controls)}"


def _plain_call(tool: Tool, controls: Controls) -> str:
    return f"{literals([tool.name, SEPARATOR], controls)} {arguments(tool)}"


FENCED_SYNTAX: Final = CallSyntax((CALLS, CALL), _fenced_call, (CALL_END, "\n", CALL), (CALL_END, CALLS_END))
PLAIN_SYNTAX: Final = CallSyntax((CALLS, CALL), _plain_call, (CALL_END, CALL), (CALL_END, CALLS_END))


def read(source: Source, answer: Answer, tools: Tools) -> Reading[None]:
    del tools
    while marker := (yield from source.until((CALLS, CALL), answer.content)):
        source.record(marker)
        if marker == CALLS:
            yield from source.skip_space()
        found = marker == CALL or (yield from source.took(CALL))
        while found and (yield from _read_call(source, answer)):
            source.record()
            yield from source.skip_space()
            found = yield from source.took(CALL)
        if (yield from source.took(CALLS_END)):
            source.record()
        answer.content(source.recorded)


def _read_call(source: Source, answer: Answer) -> Reading[bool]:
    """One call behind its marker. False: it is none."""
    name = yield from _read_line(source)
    if name == _KIND and (yield from source.took(SEPARATOR)):
        name = yield from _read_line(source)
    else:
        yield from source.took(SEPARATOR)
    yield from source.skip_space()
    is_fenced = yield from source.took(_FENCE)
    if is_fenced:
        yield from source.took("json")
        yield from source.skip_space()
    if not name or (yield from source.peek()) != "{":
        return False
    answer.call(name)
    yield from read_value(source, answer.arguments)
    answer.break_off()
    yield from source.skip("`" if is_fenced else "")
    yield from source.took(CALL_END)
    return True


def _read_line(source: Source) -> Reading[str]:
    """What comes before a line break, an object or the separator."""
    text = ""
    while char := (yield from source.peek()):
        if char in "\n{" or (char == SEPARATOR[0] and text):
            break
        text += yield from source.next()
    return text.strip()
