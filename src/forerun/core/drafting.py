"""Drafters that need no model."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.core.copying import Copy, match_lengths
from forerun.core.origins import first, total
from forerun.core.prompt import Tokens
from forerun.core.request import ForcedTokens, Request
from forerun.core.step import Drafter, DraftRequest, Proposal

logger = logging.getLogger(__name__)

_CANDIDATES = 64
"""Occurrences compared at most, the latest ones: repetitive text has thousands."""


_LONG = 8
"""A match of so many tokens is a copy, wherever an earlier copy broke off."""
_RESUMED = 3
"""So many tokens in a row where a broken copy may go on: it does."""
_HIGHEST_MATCH = 5
REPLACED_ONE, REPLACED_MORE, ONE_NEARBY, TWO_NEARBY, FROM_THE_START = 0, 1, 6, 7, 8
"""Grades of the n-gram drafter besides the lengths of matches (2 to 5): what comes behind an edit of one token, or of
more; where the latest one or two tokens come near the place of an edit; where all of the answer so far is a copy."""


class NgramDrafter:
    """Proposes what followed the earlier occurrence of the last tokens that matches longest, of equal ones the latest;
    behind an edit, what followed near the place where the copy broke off (core/copying.py).

    Prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding, over prompt and output of a request.
    A proposal's grade says how long the match was, or what kind of guess it is.
    """

    name = "ngram"

    def __init__(self, longest: int = 16, shortest: int = 3, *, passes_edits: bool = True) -> None:
        """`passes_edits`: guess behind edits too. Such guesses are often wrong: only for those who learn how often."""
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-gram lengths: 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest = longest
        self.shortest = shortest
        self._passes_edits = passes_edits
        self._copies: dict[int, tuple[Request, Copy]] = {}
        """By sequence id: whose text is being copied, and where it is."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._proposal(request) for request in requests]

    def _proposal(self, request: DraftRequest) -> Proposal:
        tokens = request.tokens
        if request.limit < 1 or tokens.size <= self.shortest:
            return Proposal()
        copy = self._followed(request)
        if copy is not None and not copy.is_broken(tokens) and copy.length >= _LONG:
            return _copied(request, copy.source, _grade(copy.length))
        match = _longest_match(tokens, self.shortest, self.longest)
        if copy is not None and copy.is_broken(tokens) and (match is None or match.length < _LONG):
            return _behind_edit(request, copy, match)
        if match is None:
            return Proposal()
        if self._passes_edits and request.request is not None:
            self._copies[request.sequence_id] = (request.request, Copy(match.source, tokens.size, match.length))
        return _copied(request, match.source, _grade(match.length, _answered(request)))

    def _followed(self, request: DraftRequest) -> Copy | None:
        """The copy that a request was at, as far as its text goes."""
        owner, copy = self._copies.get(request.sequence_id, (None, None))
        if copy is None or owner is not request.request:
            return None
        copy.follow(request.tokens)
        return None if copy.is_lost(request.tokens) else copy


@dataclass(frozen=True, slots=True)
class _Match:
    """Where else the last tokens occur: what follows them there, and how many are the same."""

    source: int
    length: int


def _behind_edit(request: DraftRequest, copy: Copy, match: _Match | None) -> Proposal:
    """Going on with a copy that was broken off, or with a short match elsewhere where nothing near it says how."""
    edited = request.tokens.size - copy.at
    source, same = copy.nearby(request.tokens)
    if same >= _RESUMED:
        copy.resume(source, request.tokens)
        return _copied(request, source, _grade(copy.length))
    if same:
        return _copied(request, source, ONE_NEARBY if same == 1 else TWO_NEARBY)
    if edited == 1:
        return _copied(request, source, REPLACED_ONE)
    if match is not None:
        return _copied(request, match.source, _grade(match.length))
    return _copied(request, source, REPLACED_MORE)


def _copied(request: DraftRequest, source: int, grade: int) -> Proposal:
    """What begins at `source` over again; what repeats goes on repeating: a copy may overlap itself."""
    following = np.resize(request.tokens[source:], request.limit).tolist()
    return Proposal(tuple(following[: _first_media(following)]), grade)


def _grade(length: int, answered: int | None = None) -> int:
    """By how many tokens match, of `answered` ones in all."""
    if answered is not None and answered <= length < _LONG:
        return FROM_THE_START
    return min(length.bit_length(), _HIGHEST_MATCH)


def _answered(request: DraftRequest) -> int | None:
    return None if request.request is None else request.tokens.size - request.request.prompt.logical_tokens


def _longest_match(tokens: Tokens, shortest: int, longest: int) -> _Match | None:
    """The longest match, of equal ones the latest."""
    ends = _occurrences(tokens, shortest)[-_CANDIDATES:]
    if not ends.size:
        return None
    lengths = match_lengths(tokens, ends, longest)
    best = lengths.size - 1 - int(lengths[::-1].argmax())
    return _Match(int(ends[best]) + 1, int(lengths[best]))


_Indexes: TypeAlias = NDArray[np.intp]


def _occurrences(tokens: Tokens, length: int) -> _Indexes:
    """Where else in `tokens` its last `length` tokens occur: index of the last token of each, earliest first."""
    last = tokens.size - 1
    ends = np.flatnonzero(tokens[length - 1 : last] == tokens[last]) + (length - 1)
    for back in range(1, length):
        ends = ends[tokens[ends - back] == tokens[last - back]]
    return ends


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
