"""A compiled grammar at work: llguidance's matcher, moved to wherever it is asked about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from forerun.core.history import TokenHistory
from forerun.structured.marker import Marker
from forerun.structured.tokens import Tokens

_SHOWN = 200
"""Characters of what llguidance says is wrong."""


class GrammarConstraint:
    """Implements core.grammar.TokenConstraint with a matcher of its own.

        taken    [ output so far ........ | block or drafts ]   as far as the matcher has gone
        settled  [ known to be history ]                        compared once, since history only grows

    Until the marker (where there is one) has come, all but an end may. End tokens are not given to the matcher: they
    may come where it says that the text so far is complete.
    """

    def __init__(self, matcher: LLMatcher, tokens: Tokens, marker: Marker | None = None) -> None:
        """`matcher` has consumed nothing, and belongs to this constraint."""
        self._start = matcher
        self._matcher = matcher.deep_copy()
        self._tokens = tokens
        self._marker = marker
        self._ends = tokens.table.end_tokens
        self._end_ids = np.array(sorted(self._ends), np.intp)
        self._taken: list[int] = []
        self._fed: list[tuple[int, ...]] = []
        """What the matcher was given for each token: itself, nothing, or what spells the rest behind the marker."""
        self._settled = 0
        self._begun_at: int | None = 0 if marker is None else None
        """Tokens taken when the marker was complete."""
        self._is_refused = False
        """What it was asked about cannot come, or nothing can behind it."""
        self._problem: str | None = None
        self._problem_at = 0
        self._fitting: dict[bytes, bool] = {}

    @property
    def problem(self) -> str | None:
        return self._problem

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:
        self._go_to(history, block)
        if self._is_refused:
            return np.zeros(self._tokens.table.size, np.bool_)
        if self._begun_at is None:
            return self._allowed_before_marker()
        bits = self._matcher.compute_bitmask()
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._tokens.table.size, bitorder="little")
        allowed = mask.view(np.bool_)
        if self._notice_problem():
            allowed[:] = False
        allowed[self._end_ids] = self._may_end()
        return allowed

    def accepted(self, history: TokenHistory, block: Sequence[int], tokens: Sequence[int]) -> int:
        self._go_to(history, block)
        if self._is_refused:
            return 0
        return next((count for count, token in enumerate(tokens) if not self._take(token)), len(tokens))

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:
        self._go_to(history, ())
        if self._is_refused or self._begun_at is None:
            return ()
        tokens = self._matcher.compute_ff_tokens()[:limit]
        return () if self._notice_problem() else tokens

    # --- moving ----------------------------------------------------------

    def _go_to(self, history: TokenHistory, block: Sequence[int]) -> None:
        start = history.prompt_tokens + self._settled
        wanted = [*history.slice(start, history.size).tolist(), *block]
        known = self._taken[self._settled :]
        same = next(
            (index for index, (one, other) in enumerate(zip(wanted, known, strict=False)) if one != other),
            min(len(wanted), len(known)),
        )
        self._go_back_to(self._settled + same)
        self._settled = min(self._settled + same, history.output_tokens)
        self._is_refused = not all(self._take(token) for token in wanted[same:]) or self._is_over()

    def _take(self, token: int) -> bool:
        """Go on by a token, if it may come."""
        if self._is_over() or (token in self._ends and not self._may_end()):
            return False
        fed: tuple[int, ...] = ()
        begins = False
        if token not in self._ends:
            rest = self._rest_behind_marker(token)
            begins = rest is not None
            if rest is not None and not self._fits(rest):
                return False
            fed = tuple(self._tokens.table.split(rest or b"")) if self._begun_at is None else (token,)
        if not self._feed(fed):
            return False
        self._taken.append(token)
        self._fed.append(fed)
        if begins:
            self._begun_at = len(self._taken)
        return True

    def _rest_behind_marker(self, token: int) -> bytes | None:
        """What a token that completes the marker goes on with; None for any other token."""
        if self._marker is None or self._begun_at is not None:
            return None
        return self._marker.rest(self._taken, token)

    def _feed(self, tokens: Sequence[int]) -> bool:
        if not tokens:
            return True
        count = self._matcher.try_consume_tokens(list(tokens))
        if self._notice_problem():
            return False
        if count < len(tokens) and count:
            self._matcher.rollback(count)
        return count == len(tokens)

    def _go_back_to(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        forgotten = sum(map(len, self._fed[count:]))
        del self._taken[count:], self._fed[count:]
        if self._begun_at is not None and self._begun_at > count:
            self._begun_at = None
        if self._problem is not None and count < self._problem_at:
            self._problem = None
            self._build_again()
        elif self._problem is None and forgotten and not self._matcher.rollback(forgotten):
            self._build_again()

    def _build_again(self) -> None:
        self._matcher = self._start.deep_copy()
        self._feed([token for fed in self._fed for token in fed])

    # --- where it is ----------------------------------------------------------

    def _is_over(self) -> bool:
        return self._problem is not None or (bool(self._taken) and self._taken[-1] in self._ends)

    def _may_end(self) -> bool:
        return self._begun_at is not None and self._problem is None and self._matcher.is_accepting()

    def _notice_problem(self) -> bool:
        """Whether the matcher has run into a limit; it is of no use then."""
        if self._problem is None and self._matcher.is_error():
            self._problem = " ".join(self._matcher.get_error().split())[:_SHOWN]
            self._problem_at = len(self._taken)
        return self._problem is not None

    def _allowed_before_marker(self) -> NDArray[np.bool_]:
        assert self._marker is not None
        allowed = np.ones(self._tokens.table.size, np.bool_)
        allowed[self._end_ids] = False
        for token, rest in self._marker.overshooting(self._taken):
            allowed[token] = self._fits(rest)
        return allowed

    def _fits(self, rest: bytes) -> bool:
        """Whether the grammar may begin with what a token goes on with behind the marker."""
        known = self._fitting.get(rest)
        if known is None:
            tokens = self._tokens.table.split(rest)
            is_spelled = b"".join(self._tokens.table.pieces[token] for token in tokens) == rest
            fits = is_spelled and self._start.deep_copy().validate_tokens(tokens) == len(tokens)
            known = self._fitting[rest] = fits
        return known

    def __repr__(self) -> str:
        state = "before its marker" if self._begun_at is None else "at work"
        return f"GrammarConstraint({state}, {len(self._taken)} tokens taken)"
