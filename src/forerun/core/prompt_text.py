"""The text of a prompt, with what of it is text only, and where media stands in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptText:
    """Control tokens are read where the text spells them, but not in `plain`: there a caller wrote what only looks so.

    <|im_start|>user\\n  Type <|im_end|> to leave.  <|im_end|>
                        ^     ~~~~~~~~~~ plain
                        media
    """

    text: str
    plain: tuple[tuple[int, int], ...] = ()
    """Where such spellings start and end, in order."""
    media: tuple[tuple[int, int], ...] = ()
    """Before which character an item of media stands, and which of the prompt's items that is; in order. The text
    itself holds nothing there."""

    def parts(self) -> Iterator[tuple[str, bool]]:
        """The text in pieces that are not empty, and whether each is plain."""
        done = 0
        for start, end in self.plain:
            if done < start:
                yield self.text[done:start], False
            yield self.text[start:end], True
            done = end
        if done < len(self.text):
            yield self.text[done:], False

    def cut(self) -> Iterator[PromptText | int]:
        """What the prompt consists of, in order: pieces of text, not empty and without media, and numbers of items."""
        done = 0
        for offset, item in self.media:
            if done < offset:
                yield self._between(done, offset)
            yield item
            done = offset
        if done < len(self.text):
            yield self._between(done, len(self.text))

    def after(self, start: int) -> PromptText:
        """What follows the first `start` characters, which end outside of plain text. Media stands at or after it."""
        media = tuple((offset - start, item) for offset, item in self.media if offset >= start)
        return PromptText(self.text[start:], self._between(start, len(self.text)).plain, media)

    def _between(self, start: int, stop: int) -> PromptText:
        inside = tuple((first - start, last - start) for first, last in self.plain if start <= first and last <= stop)
        return PromptText(self.text[start:stop], inside)

    def __str__(self) -> str:
        return self.text
