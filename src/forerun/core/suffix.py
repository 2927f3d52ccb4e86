"""What was said before: the outputs of all requests, indexed by their last tokens.

After SuffixDecoding (Oliaro et al., https://arxiv.org/abs/2411.04975), with hash chains in place of suffix trees: in
Python a tree of a million tokens would take gigabytes, these arrays take tens of megabytes.

Texts are written into pages of a ring, several at a time, each request's as it grows; the oldest page makes room:

    ring     [ page 6 of text B | page 7 of text C | page 3 of text A | page 4 of text B | page 5 of text A ]
    text A   page 3 ─► page 5                        (page 3 is the oldest, page 8 will take its place)

For each run of 3 and of 8 tokens a chain leads from the latest position where it ended to earlier ones, as in LZ77. A
tenant has chains of its own, so no other tenant's text is looked at, or makes a lookup longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.core.history import TokenHistory
from forerun.core.step import DraftRequest, Proposal

_PAGE_BITS = 6
PAGE = 2**_PAGE_BITS
"""Tokens of a page; no proposal is longer."""
_SHORT, _LONG = 3, 8
"""Runs of tokens that are indexed. The long ones are looked at first: short ones occur too often to look at all."""
_LONGEST = 32
"""Matches are not followed further back."""
_CANDIDATES = 16
"""Occurrences compared at most, the latest ones."""
_UNWRITTEN = 8
"""A growing text is written so many tokens at a time."""
_LINKS = 64
"""Links of a chain followed at most: runs with other hashes may share it."""
_TAG_BITS = 16
_TAG = 2**_TAG_BITS - 1
"""A link is a position, shifted, and these bits of its run's hash, which tell runs of one chain apart."""
_NOWHERE = -1
_MISSING = -2
"""Where a text has no token; media are -1."""
_NEVER = -3
"""Equals no token."""
_DISPUTED = 1
"""Grade of what most, but not nearly all, of the matches went on with."""
_UNDISPUTED = 0.6
"""Share of the matches that must go on with the same token for a proposal to be graded by length alone."""

_Positions: TypeAlias = NDArray[np.int64]


class WrittenText:
    """How far one request's text is written. Owned by the request."""

    __slots__ = ("page", "start", "written")

    def __init__(self, history: TokenHistory) -> None:
        self.start = self.written = _start(history)
        """Index of the first token that is, and of the first that is not written."""
        self.page = _NOWHERE
        """The page written last."""


def _start(history: TokenHistory) -> int:
    """The end of the prompt is written too, so that an answer given before is found from its first token on."""
    start = max(history.prompt_tokens - _LONGEST, 0)
    media = np.flatnonzero(history.slice(start, history.prompt_tokens) < 0)
    return start + int(media[-1]) + 1 if media.size else start


class _Chains:
    """One tenant's way in: by the hash of a run of tokens, a link to the latest position where one ended."""

    __slots__ = ("_heads", "_mask", "long", "pages", "short")

    def __init__(self) -> None:
        self.pages = 0
        self._use(np.full((2, PAGE), _NOWHERE, np.int64))

    def _use(self, heads: _Positions) -> None:
        self._heads = heads
        self._mask: int = heads.shape[1] - 1
        self.short, self.long = heads[0].data, heads[1].data  # memory views: one by one much faster than arrays

    def place(self, run: Sequence[int]) -> tuple[int, int]:
        """Which head a run of tokens belongs to, and its tag."""
        hashed = hash(tuple(run))
        return hashed & self._mask, hashed >> 32 & _TAG

    def add_page(self) -> None:
        """Twice the size where there are more positions than heads: both halves go on with the old chains."""
        self.pages += 1
        if self.pages * PAGE > self._mask + 1:
            self._use(np.tile(self._heads, 2))

    def drop_page(self) -> None:
        """Half the size where it is far too large: of two chains the later one stays."""
        self.pages -= 1
        size = self._mask + 1
        if size > PAGE and self.pages * PAGE * 4 <= size:
            self._use(np.maximum(self._heads[:, : size // 2], self._heads[:, size // 2 :]))

    @property
    def nbytes(self) -> int:
        return self._heads.nbytes


class SuffixIndex:
    """Implements core.step.Drafter: proposes how texts went on that ended like this one, the longest match first.

    Of equally long matches the most frequent continuation is followed, of equally frequent ones the latest. Holds at
    most `capacity` tokens (rounded up to pages), the oldest page going first, whoever's it is.
    """

    name = "suffix"

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a suffix index holds at least one token, got {capacity}")
        pages: int = -(-capacity // PAGE)
        self._pages = pages
        self.capacity = pages * PAGE
        self._tokens = np.zeros(self.capacity, np.int32)
        self._earlier = np.zeros((2, self.capacity), np.int64)
        """For the short and the long runs: by slot, the link to the position before it in its chain."""
        self._filled = np.zeros(pages, np.int64)
        self._links = np.full((pages, 3), _NOWHERE, np.int64)
        """Of each page: the page before it in its text, itself, the page after it."""
        self._owners: list[str] = [""] * pages
        self._chains: dict[str, _Chains] = {}
        self._next: int = 0
        """Pages are numbered for ever; page n is at n % pages. A position is page * PAGE + offset."""
        self._slots, self._lengths = self._tokens.data, self._filled.data
        self._short, self._long = self._earlier[0].data, self._earlier[1].data

    @property
    def _oldest(self) -> int:
        return max(self._next - self._pages, 0)

    # --- writing ----------------------------------------------------------

    def write(self, text: WrittenText, history: TokenHistory, tenant: str, *, is_whole: bool = False) -> None:
        """Take in what is known of a text by now; a little waits until there is more, or the text `is_whole`."""
        if history.size - text.written < (1 if is_whole else _UNWRITTEN):
            return
        first = max(text.start, text.written - _LONG + 1)
        known = history.slice(first, history.size).tolist()
        for end in range(text.written - first + 1, len(known) + 1):
            self._write(text, known, end, tenant)
        text.written = history.size

    def _write(self, text: WrittenText, known: list[int], end: int, tenant: str) -> None:
        """Write the token before `end` into the ring and both chains."""
        page = text.page
        if page < self._oldest or self._lengths[page % self._pages] == PAGE:
            page = self._open_page(text, tenant)
        at = page % self._pages
        offset = self._lengths[at]
        self._lengths[at] = offset + 1
        slot, position = at * PAGE + offset, page * PAGE + offset
        self._slots[slot] = known[end - 1]
        chains = self._chains[tenant]
        if end >= _SHORT:
            head, tag = chains.place(known[end - _SHORT : end])
            self._short[slot], chains.short[head] = chains.short[head], position << _TAG_BITS | tag
        if end >= _LONG:
            head, tag = chains.place(known[end - _LONG : end])
            self._long[slot], chains.long[head] = chains.long[head], position << _TAG_BITS | tag

    def _open_page(self, text: WrittenText, tenant: str) -> int:
        page = self._next
        at = page % self._pages
        if page >= self._pages:
            self._drop(self._owners[at])
        self._next += 1
        self._owners[at] = tenant
        self._chains.setdefault(tenant, _Chains()).add_page()
        self._filled[at] = 0
        self._links[at] = (text.page, page, _NOWHERE)
        if text.page >= self._oldest:
            self._links[text.page % self._pages, 2] = page
        text.page = page
        return page

    def _drop(self, tenant: str) -> None:
        chains = self._chains[tenant]
        chains.drop_page()
        if not chains.pages:
            del self._chains[tenant]

    # --- looking up ----------------------------------------------------------

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = [_NO_IDEA] * len(requests)
        for run in (_LONG, _SHORT):
            asked = [index for index, proposal in enumerate(proposals) if not proposal.tokens]
            ends = {index: ends for index in asked if (ends := self._ends(requests[index], run))}
            if ends:
                found = self._followed([requests[index] for index in ends], list(ends.values()))
                for index, proposal in zip(ends, found, strict=True):
                    proposals[index] = proposal
        return proposals

    def _ends(self, request: DraftRequest, run: int) -> list[int]:
        """The latest positions that are still there where the last `run` tokens of a text ended before."""
        chains = self._chains.get("" if request.request is None else request.request.tenant)
        if chains is None or request.limit < 1 or request.tokens.size < run:
            return []
        head, tag = chains.place(request.tokens[-run:].tolist())
        link = chains.long[head] if run == _LONG else chains.short[head]
        earlier = self._long if run == _LONG else self._short
        oldest, capacity = self._oldest * PAGE, self.capacity
        ends: list[int] = []
        for _ in range(_LINKS):
            position = link >> _TAG_BITS
            if position < oldest:
                break
            if link & _TAG == tag:
                ends.append(position)
                if len(ends) == _CANDIDATES:
                    break
            link = earlier[position % capacity]
        return ends

    def _followed(self, requests: Sequence[DraftRequest], ends: Sequence[list[int]]) -> list[Proposal]:
        """What followed the longest of the matches at each request's `ends`; all are compared together."""
        limits = [min(request.limit, PAGE) for request in requests]
        around = self._around(np.concatenate(ends), max(limits))
        last = np.full((len(requests), _LONGEST), _NEVER, np.int32)
        for row, request in zip(last, requests, strict=True):
            tokens = request.tokens[-_LONGEST:]
            row[_LONGEST - tokens.size :] = tokens
        equal = around[:, :_LONGEST] == last.repeat([len(own) for own in ends], axis=0)
        following = around[:, _LONGEST:]
        lengths = np.logical_and.accumulate(equal[:, ::-1], axis=1).sum(axis=1)
        lengths[following[:, 0] < 0] = 0  # nothing is known to follow, or media
        stops = np.cumsum([len(own) for own in ends]).tolist()
        return [
            _best(following[stop - len(own) : stop, :limit], lengths[stop - len(own) : stop].tolist())
            for own, stop, limit in zip(ends, stops, limits, strict=True)
        ]

    def _around(self, ends: _Positions, limit: int) -> NDArray[np.int32]:
        """Tokens around positions, shape (ends, _LONGEST + limit): the _LONGEST up to each, and `limit` after it."""
        own = ends % self.capacity
        offsets = (own % PAGE)[:, None] + np.arange(1 - _LONGEST, limit + 1)
        hops, within = offsets >> _PAGE_BITS, offsets & (PAGE - 1)  # a page back, the same page, or a page on
        pages = self._links.ravel()[(own >> _PAGE_BITS)[:, None] * 3 + 1 + hops]
        at = pages % self._pages
        around: NDArray[np.int32] = self._tokens[at * PAGE + within]
        around[(pages < self._oldest) | (within >= self._filled[at])] = _MISSING
        return around

    # --- looking in ----------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self._tokens, self._earlier, self._filled, self._links)
        return sum(array.nbytes for array in arrays) + sum(chains.nbytes for chains in self._chains.values())

    def check_integrity(self) -> None:
        """Raise AssertionError where pages and tenants contradict each other."""
        live = range(self._oldest, self._next)
        owners = Counter(self._owners[page % self._pages] for page in live)
        assert owners == {tenant: chains.pages for tenant, chains in self._chains.items()}
        assert all(self._links[page % self._pages, 1] == page for page in live)

    def __repr__(self) -> str:
        written = int(self._filled.sum())
        return f"SuffixIndex({written} of {self.capacity} tokens, {len(self._chains)} tenants, {self.nbytes} bytes)"


_NO_IDEA = Proposal()


def _best(following: NDArray[np.int32], lengths: list[int]) -> Proposal:
    """What most of the longest matches went on with; `following` has a row for each match."""
    longest = max(lengths)
    if longest < _SHORT:
        return _NO_IDEA
    row, share = most_frequent(following[[index for index, length in enumerate(lengths) if length == longest]])
    return Proposal(row, longest.bit_length() if share >= _UNDISPUTED else _DISPUTED)


def most_frequent(rows: NDArray[np.int32]) -> tuple[tuple[int, ...], float]:
    """Follow, token by token, what most of the rows (the latest first) say; and the share that says the first token.

    Ids below 0 end a row; such a row has no vote any more.
    """
    share = 1.0
    while len(rows) > 1:
        differs = (rows != rows[0]).any(axis=0)
        at = int(differs.argmax())
        if not differs[at]:
            break
        votes = Counter([token for token in rows[:, at].tolist() if token >= 0])
        if not votes:
            break
        token, count = votes.most_common(1)[0]
        share = share if at else count / len(rows)
        rows = rows[rows[:, at] == token]
    row = rows[0].tolist()
    end = next((index for index, token in enumerate(row) if token < 0), len(row))
    return tuple(row[:end]), share
