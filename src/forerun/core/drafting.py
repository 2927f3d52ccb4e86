"""Drafters that need no model."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.core.origins import first, total
from forerun.core.prompt import Tokens
from forerun.core.request import ForcedTokens
from forerun.core.step import Drafter, DraftRequest, Proposal

logger = logging.getLogger(__name__)

_CANDIDATES = 64
"""Occurrences compared at most, the latest ones: repetitive text has thousands."""


class NgramDrafter:
    """Proposes what followed the earlier occurrence of the last tokens that matches longest, of equal ones the latest.

    Prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding, over prompt and output of a request.
    A proposal's grade says how long the match was.
    """

    name = "ngram"

    def __init__(self, longest: int = 16, shortest: int = 3) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-gram lengths: 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest = longest
        self.shortest = shortest

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._continuation(request.tokens, request.limit) for request in requests]

    def _continuation(self, tokens: Tokens, limit: int) -> Proposal:
        if limit < 1 or tokens.size <= self.shortest:
            return Proposal()
        ends = _occurrences(tokens, self.shortest)[-_CANDIDATES:]
        if not ends.size:
            return Proposal()
        lengths = _match_lengths(tokens, ends, self.longest)
        best = lengths.size - 1 - int(lengths[::-1].argmax())
        source = tokens[int(ends[best]) + 1 :]
        following = np.resize(source, limit).tolist()  # what repeats goes on repeating: the copy may overlap itself
        return Proposal(tuple(following[: _first_media(following)]), grade=int(lengths[best]).bit_length())


_Indexes: TypeAlias = NDArray[np.intp]


def _occurrences(tokens: Tokens, length: int) -> _Indexes:
    """Where else in `tokens` its last `length` tokens occur: index of the last token of each, earliest first."""
    last = tokens.size - 1
    ends = np.flatnonzero(tokens[length - 1 : last] == tokens[last]) + (length - 1)
    for back in range(1, length):
        ends = ends[tokens[ends - back] == tokens[last - back]]
    return ends


def _match_lengths(tokens: Tokens, ends: _Indexes, longest: int) -> _Indexes:
    """How many tokens up to each of `ends` equal the last tokens, at most `longest`."""
    back = np.arange(min(longest, tokens.size))
    at = ends[:, None] - back
    equal = (tokens[at] == tokens[tokens.size - 1 - back]) & (at >= 0)
    lengths: _Indexes = np.logical_and.accumulate(equal, axis=1).sum(axis=1)
    return lengths


def _first_media(tokens: list[int]) -> int:
    return next((index for index, token in enumerate(tokens) if token < 0), len(tokens))


class GuardedDrafter:
    """Any drafter, kept from doing harm: what cannot be verified is cut off, and one that raises is not asked again."""

    def __init__(self, drafter: Drafter, vocabulary_size: int) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._vocabulary_size = vocabulary_size
        self._has_failed = False

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        if self._has_failed:
            return [Proposal()] * len(requests)
        try:
            proposals = zip(requests, self._drafter.propose(requests), strict=True)
            return [checked(proposal, request.limit, self._vocabulary_size) for request, proposal in proposals]
        except Exception:  # somebody else's code: whatever it raises must cost speed only
            logger.exception("drafter %r failed and is not asked again", self.name)
            self._has_failed = True
            return [Proposal()] * len(requests)


_HIGHEST_GRADE = 15
"""Somebody else's grades end here: each has records of its own, which must not become many."""


def checked(proposal: Proposal, limit: int, vocabulary_size: int) -> Proposal:
    """What of a proposal can be verified: plain ids of known tokens, at most `limit`. Raises what odd values raise."""
    if proposal.origins:
        runs: tuple[tuple[object, object], ...] = proposal.origins  # somebody else's: anything
        sound = all(isinstance(name, str) and isinstance(count, int) and count > 0 for name, count in runs)
        if not sound or total(proposal.origins) != len(proposal.tokens):
            raise ValueError(f"{len(proposal.tokens)} tokens come from {proposal.origins}")
    tokens = tuple([operator.index(token) for token in proposal.tokens[:limit]])
    known = next((i for i, token in enumerate(tokens) if not 0 <= token < vocabulary_size), len(tokens))
    grade = min(max(operator.index(proposal.grade), 0), _HIGHEST_GRADE)
    return Proposal(tokens[:known], grade, first(proposal.origins, known))


def checked_forced(hook: ForcedTokens, output: Tokens, limit: int, vocabulary_size: int) -> Proposal | None:
    """What a request's hook says must come next; None where it raised."""
    try:
        return checked(Proposal(tuple(islice(hook.forced(output, limit), limit))), limit, vocabulary_size)
    except Exception:  # somebody else's code: whatever it raises must cost speed only
        logger.exception("forced tokens: %r failed and is not asked again", hook)
        return None
