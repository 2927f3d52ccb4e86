"""Where in its own text a request is copying from, edits included.

    source   a b c d e f g h ...          the text's earlier tokens
    copy     a b c X e f                  X instead of d: the copy is broken off, and goes on behind the edit

A copy that breaks off says where it would have gone on. Most edits are short, so what comes next is likely to be found
near there: where the latest tokens come next, or behind as many tokens as were replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.core.prompt import Tokens

_LEAST_COPIED = 6
"""Shorter copies are no copies to go back to."""
_MOST_COPIED = 64
"""Longer ones are trusted no more than this."""
_LONGEST_EDIT = 64
"""A copy that was broken off so many tokens ago is given up."""
_NEARBY = 48
"""So far behind the place of an edit the latest tokens are looked for."""
_ONE_NEARBY = 8
"""The same for a single token, which comes often."""


@dataclass(slots=True)
class Copy:
    """A copy of what begins at some place of the same text, followed as the text grows."""

    source: int
    """Index of the token that comes next if the copy goes on."""
    at: int
    """Where that token then stands."""
    length: int
    """Tokens copied so far; each edit halves it, so that it says how much the copy is to be trusted."""

    def follow(self, tokens: Tokens) -> None:
        """Go on for as long as the tokens that came are those of the source."""
        came = tokens[self.at :]
        differs = np.flatnonzero(came != tokens[self.source : self.source + came.size])
        same = int(differs[0]) if differs.size else came.size
        self.at += same
        self.source += same
        self.length = min(self.length + same, _MOST_COPIED)

    def is_broken(self, tokens: Tokens) -> bool:
        return self.at < tokens.size

    def is_lost(self, tokens: Tokens) -> bool:
        """Whether there is nothing to go back to."""
        return self.is_broken(tokens) and (self.length < _LEAST_COPIED or tokens.size - self.at > _LONGEST_EDIT)

    def nearby(self, tokens: Tokens) -> tuple[int, int]:
        """Where a broken copy may go on, and how many of the latest tokens say so; if none, behind a replacement."""
        first, edited = self.source - 1, tokens.size - self.at
        ends = np.flatnonzero(tokens[first : min(self.source + _NEARBY, self.at)] == tokens[-1]) + first
        if ends.size:
            lengths = match_lengths(tokens, ends, edited)
            best = int(lengths.argmax())
            if lengths[best] > 1 or ends[best] <= self.source + _ONE_NEARBY:
                return int(ends[best]) + 1, int(lengths[best])
        return self.source + edited, 0

    def resume(self, source: int, tokens: Tokens) -> None:
        """The edit is over: the token at `source` comes next."""
        self.source, self.at, self.length = source, tokens.size, self.length // 2


def match_lengths(tokens: Tokens, ends: NDArray[np.intp], longest: int) -> NDArray[np.intp]:
    """How many tokens up to each of `ends` equal the last tokens, at most `longest`."""
    back = np.arange(min(longest, tokens.size))
    at = ends[:, None] - back
    equal = (tokens[at] == tokens[tokens.size - 1 - back]) & (at >= 0)
    lengths: NDArray[np.intp] = np.logical_and.accumulate(equal, axis=1).sum(axis=1)
    return lengths
