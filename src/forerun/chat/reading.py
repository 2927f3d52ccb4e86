"""Parsers as coroutines: written as if the whole answer were there, fed one character at a time.

What such a parser does depends on the characters it has read and on nothing else, so that the pieces, joined, cannot
depend on how the text was cut; and what it has said stays said, so that a longer text only adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeAlias, TypeVar

from forerun.chat.pieces import Content, Piece, Reasoning, ToolArguments, ToolCall

_T = TypeVar("_T")
Reading: TypeAlias = Generator[None, str, _T]
"""Waits at each `yield` for the next character; the empty text says that there are no more."""
Write: TypeAlias = Callable[[str], None]
END: Final = ""


class Source:
    """The characters of an answer, with a look-back: a reader that was wrong gets what it took as `recorded`."""

    __slots__ = ("_record", "_unread")

    def __init__(self) -> None:
        self._unread: list[str] = []  # last one first
        self._record: list[str] = []

    def next(self) -> Reading[str]:
        """The next character; END from the end on."""
        char = self._unread.pop() if self._unread else (yield)
        if char:
            self._record.append(char)
        return char

    def unread(self, text: str) -> None:
        """Give characters back that were read last."""
        if text:
            self._unread.extend(reversed(text))
            del self._record[-len(text) :]

    def peek(self) -> Reading[str]:
        """The character that comes next, left there."""
        char = yield from self.next()
        self.unread(char)
        return char

    def record(self, text: str = "") -> None:
        """From here on remember what is read, as if `text` had come just before."""
        self._record = list(text)

    @property
    def recorded(self) -> str:
        return "".join(self._record)

    @property
    def mark(self) -> int:
        """The place in the record that `rewind` goes back to."""
        return len(self._record)

    def rewind(self, mark: int) -> None:
        """Have all that was read since then read again."""
        self.unread("".join(self._record[mark:]))

    def skip(self, unwanted: str) -> Reading[None]:
        """Leave white space and these characters out."""
        while (char := (yield from self.peek())) and (char.isspace() or char in unwanted):
            yield from self.next()

    def skip_space(self) -> Reading[None]:
        yield from self.skip("")

    def took(self, literal: str) -> Reading[bool]:
        """Whether this text comes next; then it has been read, else nothing has."""
        read = ""
        while read != literal:
            char = yield from self.next()
            read += char
            if not char or not literal.startswith(read):
                self.unread(read)
                return False
        return True

    def until(self, markers: Sequence[str], write: Write) -> Reading[str]:
        """Hand text on until one of the markers has been read, and say which; END where none comes.

        Text that may still become a marker is held back.
        """
        self.record()  # a text may be long: what is behind is not needed
        starts = {marker[0] for marker in markers}
        held = ""
        while char := (yield from self.next()):
            if not held and char not in starts:
                write(char)
                self._record.clear()
                continue
            held += char
            found = next((marker for marker in markers if held.endswith(marker)), None)
            keep = len(found) if found else _overlap(held, markers)
            write(held[: len(held) - keep])
            held = held[len(held) - keep :]
            if found:
                return found
        write(held)
        return END


def _overlap(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a marker."""
    return next((size for size in range(len(text), 0, -1) if any(one.startswith(text[-size:]) for one in markers)), 0)


class Answer:
    """Takes pieces down as they are found. Owns the numbers of the calls, and white space between the parts.

    White space around reasoning and calls is layout, written by the templates: it is left out.
    """

    __slots__ = ("_calls", "_gap", "_holds_space", "_pieces", "_running", "_skips_space", "_texts")

    def __init__(self, *, holds_space: bool) -> None:
        self._holds_space = holds_space
        """White space at the end of content is held back, for a call may follow."""
        self._skips_space = False
        self._gap = ""
        self._calls = 0
        self._pieces: list[Piece] = []
        self._running: type[Piece] | None = None
        self._texts: list[str] = []

    def content(self, text: str) -> None:
        self._spaced(Content, text, holds=self._holds_space)

    def reasoning(self, text: str) -> None:
        self._spaced(Reasoning, text, holds=True)

    def call(self, name: str) -> None:
        """The next call begins."""
        self.break_off()
        self._flush()
        self._pieces.append(ToolCall(self._calls, name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """More arguments of the latest call."""
        self._write(ToolArguments, text)

    def break_off(self) -> None:
        """Another part follows: white space here belongs to neither."""
        self._gap = ""
        self._skips_space = True

    def take(self) -> list[Piece]:
        """The pieces since the last time."""
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self) -> list[Piece]:
        """The last pieces."""
        if self._running is not Reasoning:
            self._write(Content, self._gap)
        self._gap = ""
        return self.take()

    def _spaced(self, kind: type[Piece], text: str, *, holds: bool) -> None:
        if self._skips_space:
            text = text.lstrip()
        if not text:
            return
        self._skips_space = False
        shown = text.rstrip() if holds else text
        if shown:
            self._write(kind, self._gap + shown)
            self._gap = ""
        self._gap += text[len(shown) :]

    def _write(self, kind: type[Piece], text: str) -> None:
        if not text:
            return
        if kind is not self._running:
            self._flush()
            self._running = kind
        self._texts.append(text)

    def _flush(self) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        if not text:
            return
        if self._running is ToolArguments:
            self._pieces.append(ToolArguments(self._calls - 1, text))
        else:
            self._pieces.append(Reasoning(text) if self._running is Reasoning else Content(text))


class CoroutineParser:
    """Drives a coroutine as an OutputParser."""

    __slots__ = ("_answer", "_reading")

    def __init__(self, answer: Answer, reading: Reading[None]) -> None:
        self._answer = answer
        self._reading = reading
        next(self._reading)

    def push(self, text: str) -> list[Piece]:
        for char in text:
            self._reading.send(char)
        return self._answer.take()

    def finish(self) -> list[Piece]:
        try:
            while True:
                self._reading.send(END)
        except StopIteration:
            return self._answer.finish()
