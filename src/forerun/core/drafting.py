"""Drafters that need no model, and how many tokens each sequence may draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from forerun.core.prompt import Tokens
from forerun.core.step import DraftRequest


class DraftAllocator(Protocol):
    """Shares a step's spare rows among the sequences that could draft."""

    def allocate(self, wanted: Sequence[int], spare_rows: int) -> list[int]:
        """For each sequence how many tokens it may draft: at most `wanted`, together at most `spare_rows`."""
        ...


class FixedDraftAllocator:
    """Everyone drafts up to one maximum; when rows run short, all get the same share."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum

    def allocate(self, wanted: Sequence[int], spare_rows: int) -> list[int]:
        drafting = sum(1 for tokens in wanted if tokens > 0)
        share = min(self.maximum, max(spare_rows, 0) // drafting) if drafting else 0
        return [min(tokens, share) for tokens in wanted]


class NgramDrafter:
    """Proposes what followed the latest earlier occurrence of the last tokens, longest n-gram first.

    Prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding, over prompt and output of a request.
    """

    name = "ngram"

    def __init__(self, longest: int = 5, shortest: int = 3) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-gram lengths: 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest = longest
        self.shortest = shortest

    def propose(self, requests: Sequence[DraftRequest]) -> list[tuple[int, ...]]:
        return [self._continuation(request.tokens, request.limit) for request in requests]

    def _continuation(self, tokens: Tokens, limit: int) -> tuple[int, ...]:
        if limit < 1 or tokens.size <= self.shortest:
            return ()
        ends = _occurrences(tokens, self.shortest)
        for length in range(self.shortest + 1, self.longest + 1):
            longer = ends[ends >= length - 1]
            longer = longer[tokens[longer - (length - 1)] == tokens[tokens.size - length]]
            if not longer.size:
                break
            ends = longer
        if not ends.size:
            return ()
        source = tokens[int(ends[-1]) + 1 :]
        following = np.resize(source, limit).tolist()  # what repeats goes on repeating: the copy may overlap itself
        return tuple(following[: _first_media(following)])


def _occurrences(tokens: Tokens, length: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Where else in `tokens` its last `length` tokens occur: index of the last token of each, earliest first."""
    last = tokens.size - 1
    ends = np.flatnonzero(tokens[length - 1 : last] == tokens[last]) + (length - 1)
    for back in range(1, length):
        ends = ends[tokens[ends - back] == tokens[last - back]]
    return ends


def _first_media(tokens: list[int]) -> int:
    return next((index for index, token in enumerate(tokens) if token < 0), len(tokens))
