"""The text of a prompt, with what of it is text only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptText:
    """Control tokens are read where the text spells them, but not in `plain`: there a caller wrote what only looks so.

    <|im_start|>user\\n  Type <|im_end|> to leave.  <|im_end|>
                             ~~~~~~~~~~ plain
    """

    text: str
    plain: tuple[tuple[int, int], ...] = ()
    """Where such spellings start and end, in order."""

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

    def after(self, start: int) -> PromptText:
        """What follows the first `start` characters, which end outside of plain text."""
        return PromptText(
            self.text[start:], tuple((one - start, end - start) for one, end in self.plain if one >= start)
        )

    def __str__(self) -> str:
        return self.text
