"""Reads tool calls written as JSON: `{"name": ..., "arguments": {...}}` and lists of them, as they stream by."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from forerun.chat.reading import Answer, Reading, Source, Write

NAME_KEYS: Final = frozenset({"name", "tool_name"})
ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters", "args"})
_WRAPPER: Final = "function"
_ASIDE_KEYS: Final = frozenset({"id", "type", "index", "tool_call_id"})
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_PAIRS: Final = {"{": "}", "[": "]"}
_SCALAR_ENDS: Final = ",}]"
_NO_ARGUMENTS: Final = "{}"


def read_string(source: Source, write: Write) -> Reading[bool]:
    """A JSON string behind its opening quote, decoded as it comes. False: the text ended within it."""
    high = ""
    while char := (yield from source.next()):
        if char == '"':
            return True
        if char == "\\":
            char = yield from _escaped(source)
        if high or "\ud800" <= char <= "\udbff":  # half a character: wait for the other one
            high += char
            if len(high) == 2:
                write(high.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
                high = ""
            continue
        write("\ufffd" if "\udc00" <= char <= "\udfff" else char)
    return False


def _escaped(source: Source) -> Reading[str]:
    char = yield from source.next()
    if char != "u":
        return _ESCAPES.get(char, char)
    digits = ""
    while len(digits) < 4 and (digit := (yield from source.next())):
        if digit not in "0123456789abcdefABCDEF":
            source.unread(digit)
            break
        digits += digit
    return chr(int(digits, 16)) if len(digits) == 4 else f"u{digits}"


def read_value(source: Source, write: Write) -> Reading[bool]:
    """A JSON value, as it is written, as it comes: up to the bracket that closes it.

    Only strings and brackets are looked at. False: it ended too early, or at a bracket that closes none of its own.
    """
    closers: list[str] = []
    while char := (yield from source.next()):
        if char == '"':
            write(char)
            if not (yield from _copy_string(source, write)):
                return False
        elif char in _PAIRS:
            closers.append(_PAIRS[char])
            write(char)
        elif closers and char in "}]":
            if char != closers[-1]:
                source.unread(char)
                return False
            write(closers.pop())
        elif not closers and (char in _SCALAR_ENDS or char.isspace()):
            source.unread(char)
            return True
        else:
            write(char)
        if not closers and char in '"}]':
            return True
    return False


def _copy_string(source: Source, write: Write) -> Reading[bool]:
    while char := (yield from source.next()):
        write(char)
        if char == '"':
            return True
        if char == "\\":
            write((yield from source.next()))
    return False


@dataclass(slots=True)
class _Call:
    """One call while it is read: announced once its name is known, with what came of its arguments before that."""

    answer: Answer
    allowed: Container[str] | None
    is_wrapped: bool = False
    is_announced: bool = False
    has_arguments: bool = False
    early: list[str] = field(default_factory=list)

    def named(self, name: str) -> bool:
        """Take the name; False where it is none of a call."""
        if self.is_announced or not name.strip() or (self.allowed is not None and name not in self.allowed):
            return False
        self.is_announced = True
        self.answer.call(name)
        self.answer.arguments("".join(self.early))
        return True

    def write(self, text: str) -> None:
        self.has_arguments = True
        if self.is_announced:
            self.answer.arguments(text)
        else:
            self.early.append(text)

    def close(self) -> None:
        if self.is_announced and not self.has_arguments:
            self.answer.arguments(_NO_ARGUMENTS)


def read_call(source: Source, answer: Answer, allowed: Container[str] | None = None) -> Reading[bool]:
    """One call, an object behind its opening brace. False: it is none, and nothing was said of it.

    `allowed`: with a name that is not among these, or a key no call has, it is some other object. Without, whatever
    has a name is a call. What follows a call that was announced is left to the reader of what comes next.
    """
    call = _Call(answer, allowed)
    yield from _read_members(source, call)
    return call.is_announced


def _read_members(source: Source, call: _Call) -> Reading[bool]:
    """The members of an object. False where it is malformed or not of a call."""
    while True:
        yield from source.skip_space()
        char = yield from source.next()
        if char == "}":
            call.close()
            return True
        if char == ",":
            continue
        if char != '"':
            source.unread(char)
            return False
        key: list[str] = []
        if not (yield from read_string(source, key.append)):
            return False
        yield from source.skip_space()
        if not (yield from source.took(":")):
            return False
        yield from source.skip_space()
        if not (yield from _read_member(source, call, "".join(key))):
            return False


def _read_member(source: Source, call: _Call, key: str) -> Reading[bool]:
    if key in ARGUMENT_KEYS and not call.has_arguments:
        return (yield from _read_arguments(source, call))
    first = yield from source.peek()
    if key == _WRAPPER and first == "{" and not call.is_wrapped:
        call.is_wrapped = True
        yield from source.next()
        return (yield from _read_members(source, call))
    if (key in NAME_KEYS or key == _WRAPPER) and first == '"':
        yield from source.next()
        name: list[str] = []
        return (yield from read_string(source, name.append)) and call.named("".join(name))
    if call.allowed is not None and not call.is_announced and key not in _ASIDE_KEYS:
        return False
    return (yield from read_value(source, lambda _: None))


def _read_arguments(source: Source, call: _Call) -> Reading[bool]:
    first = yield from source.peek()
    if first == '"':  # the object as text in a string
        yield from source.next()
        return (yield from read_string(source, call.write))
    if first == "{":
        return (yield from read_value(source, call.write))
    value: list[str] = []
    whole = yield from read_value(source, value.append)
    text = "".join(value)
    if text not in ("null", "[]", ""):
        call.write(text)
    return whole


def read_calls(source: Source, answer: Answer, allowed: Container[str] | None = None) -> Reading[bool]:
    """A call, or a list of them; further calls may follow, with white space, commas or semicolons between them.

    What is no call becomes content, from where it was last recorded. False: there was none.
    """
    yield from source.skip_space()
    yield from source.took("[")
    found = False
    while True:
        yield from source.skip_space()
        if not (yield from source.took("{")):
            break
        if not (yield from read_call(source, answer, allowed)):
            break
        found = True
        yield from source.skip(",;")
        source.record()
    if found:
        yield from source.skip("]}")  # those of the list, and one too many, as small models write
        source.record()
    answer.content(source.recorded)
    source.record()
    return found
