"""What an answer consists of, as a parser finds it in the text that streams by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call begins. Its arguments follow as `ToolArguments` of the same index."""

    index: int
    """Calls of an answer are numbered from 0, in order."""
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of a call's arguments: JSON text, a true difference. Joined, it is what the call was given."""

    index: int
    text: str


Piece: TypeAlias = Content | Reasoning | ToolCall | ToolArguments


class OutputParser(Protocol):
    """Parses one answer as it comes. The pieces, joined, do not depend on how the text was cut."""

    def push(self, text: str) -> list[Piece]:
        """Take more text; what can be said of it now. Text that may still become a marker is held back."""
        ...

    def finish(self) -> list[Piece]:
        """The answer has ended: what was held back. A call that was cut off stays as far as it came."""
        ...


class PlainParser:
    """All text is content."""

    def push(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []
