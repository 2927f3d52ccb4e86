"""Runs parsers over texts cut in all sorts of ways."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from forerun.chat.choice import choose_format
from forerun.chat.formats import ChatFormat, Tool
from forerun.chat.pieces import Content, Piece, Reasoning, ToolArguments, ToolCall

WEATHER = Tool(
    "get_weather",
    "Current weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
SEARCH = Tool("search", parameters={"type": "object", "properties": {"query": {"type": "string"}}})
TOOLS = (WEATHER, SEARCH)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + piece.text)
        elif isinstance(piece, ToolArguments) and isinstance(last, ToolArguments) and piece.index == last.index:
            result[-1] = ToolArguments(piece.index, last.text + piece.text)
        else:
            result.append(piece)
    return result


def parsed(
    name: str | ChatFormat, *chunks: str, tools: Sequence[Tool] = TOOLS, starts_in_reasoning: bool = False
) -> list[Piece]:
    """The pieces, joined, of an answer that comes in these chunks."""
    chosen = choose_format(None, name=name) if isinstance(name, str) else name
    parser = chosen.parser(tools=tools, starts_in_reasoning=starts_in_reasoning)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
    return joined([*pieces, *parser.finish()])


def said(name: str, text: str, *, tools: Sequence[Tool] = TOOLS, starts_in_reasoning: bool = False) -> list[Piece]:
    """What can be said of a text before one knows whether it goes on."""
    parser = choose_format(None, name=name).parser(tools=tools, starts_in_reasoning=starts_in_reasoning)
    return joined(parser.push(text))


def calls(pieces: Iterable[Piece]) -> list[tuple[str, Any]]:
    """Names and parsed arguments of the calls."""
    found: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            assert piece.index == len(found)
            found.append((piece.name, ""))
        elif isinstance(piece, ToolArguments):
            assert piece.index == len(found) - 1
            found[-1] = (found[-1][0], found[-1][1] + piece.text)
    return [(name, json.loads(arguments)) for name, arguments in found]


def content(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


def reasoning(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))


def is_beginning(start: list[Piece], whole: list[Piece]) -> bool:
    """Whether the pieces of a text can become those of a longer one by adding to them."""
    if not start:
        return True
    *before, last = start
    if len(whole) < len(start) or whole[: len(before)] != before:
        return False
    other = whole[len(before)]
    if isinstance(last, ToolCall) or isinstance(other, ToolCall):
        return last == other
    same_call = not isinstance(last, ToolArguments) or (isinstance(other, ToolArguments) and other.index == last.index)
    return type(last) is type(other) and same_call and other.text.startswith(last.text)
