"""`--explain-tokens`: which text came from where, in colours on a terminal, in marks elsewhere.

tokens   [ the ][ quick ][ br ][ own ][ fox ]     origins say whose each is
text     [ the   quick     brown        fox ]     shown later where a character or a stop string is unfinished
"""

from __future__ import annotations

import codecs
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from rich.console import Console
from rich.style import Style
from rich.text import Text

from forerun.core.origins import TARGET
from forerun.engine.output import Output

BytesOf = Callable[[Iterable[int]], bytes]
Span = tuple[str, str]
"""Origin and text."""

_STYLES = {"draft": "green", "ngram": "cyan", "suffix": "blue", "forced": "magenta", TARGET: ""}
_OTHER_STYLE = "yellow"


class TextOrigins:
    """Cuts one answer's text into spans of one origin. A character belongs to the token that completed it."""

    def __init__(self, bytes_of: BytesOf) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._ahead: deque[Span] = deque()
        """Text of tokens that have come, not shown yet."""
        self.counts: Counter[str] = Counter()
        """Tokens by origin."""

    def spans(self, output: Output) -> list[Span]:
        """The text of the answer's next piece, neighbours of one origin together."""
        tokens = iter(output.token_ids)
        for name, count in output.origins:
            self.counts[name] += count
            for token in islice(tokens, count):
                text = self._decoder.decode(self._bytes_of([token]))
                if text:
                    self._ahead.append((name, text))
        return _merged(self._shown(output.text))

    def _shown(self, text: str) -> Iterator[Span]:
        """`text` is the beginning of what lies ahead: how much of it may be shown."""
        at = 0
        while at < len(text):
            name, ahead = self._ahead.popleft() if self._ahead else (TARGET, text[at:])
            shown = text[at : at + len(ahead)]
            if len(shown) < len(ahead):
                self._ahead.appendleft((name, ahead[len(shown) :]))
            at += len(shown)
            yield name, shown


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for name, text in spans:
        if merged and merged[-1][0] == name:
            merged[-1] = (name, merged[-1][1] + text)
        else:
            merged.append((name, text))
    return merged


class Explained:
    """Writes one answer, piece by piece: coloured where `console` shows colours, else drafted text as [ngram: text]."""

    def __init__(self, console: Console, bytes_of: BytesOf) -> None:
        self._console = console
        self._origins = TextOrigins(bytes_of)
        self._has_colours = console.is_terminal and not console.no_color and console.color_system is not None
        self._open = TARGET
        """Whose text was written last."""

    def piece(self, output: Output) -> str:
        """How the answer's next piece is written; the last one closes what is open."""
        written = "".join([self._written(name, text) for name, text in self._origins.spans(output)])
        return written + self._switch(TARGET) if output.finish_reason is not None else written

    def _written(self, name: str, text: str) -> str:
        if self._has_colours:
            return "\n".join([_coloured(name, line) for line in text.split("\n")])
        return self._switch(name) + text

    def _switch(self, name: str) -> str:
        """The marks between text of one origin and of another."""
        if name == self._open or self._has_colours:
            return ""
        closing = "" if self._open == TARGET else "]"
        self._open = name
        return closing + ("" if name == TARGET else f"[{name}: ")

    def legend(self) -> Text:
        """What the colours mean, and how many tokens came from where."""
        counts = self._origins.counts
        names = [TARGET, *sorted(name for name in counts if name != TARGET)]
        return Text("tokens: ") + Text(", ").join([Text(f"{name} {counts[name]}", _style(name)) for name in names])


def _coloured(name: str, text: str) -> str:
    style = _style(name)
    return Style.parse(style).render(text) if style and text else text


def _style(name: str) -> str:
    return _STYLES.get(name, _OTHER_STYLE)
