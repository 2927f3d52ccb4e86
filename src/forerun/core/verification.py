"""Which proposals stand. Either way the answer is one the target alone would have given.

Sample-and-match: every token is chosen as if nothing had been drafted, and a proposal stands where it is that token. So
the answer for a seed never depends on drafts; greedy is the special case.

Rejection sampling: a proposal x drawn from the draft's q stands with probability min(1, p(x) / q(x)), else a token is
drawn from max(p - q, 0). The answer has the target's distribution p (Leviathan, Kalman, Matias 2023,
https://arxiv.org/abs/2211.17192; Chen et al. 2023, https://arxiv.org/abs/2302.01318), but which answer it is depends on
the draft: only for requests that gave no seed. It accepts a little more (docs/decisions/0011-verification.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.core.race import Stream, uniform, winner
from forerun.core.request import TokenLogprobs
from forerun.core.sampling import (
    BrokenLogitsError,
    SamplingContext,
    TokenDistribution,
    distribution,
    sample,
    token_logprobs,
)
from forerun.core.step import SequenceFault
from forerun.errors import ForerunError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verified:
    """Tokens that came out of one block: `accepted` of them confirmed a proposal; the last is not yet in memory."""

    tokens: tuple[int, ...]
    accepted: int
    logprobs: tuple[TokenLogprobs, ...] | None


Verify: TypeAlias = Callable[
    [NDArray[np.float32], Sequence[int], SamplingContext, int, Sequence[TokenDistribution]], Verified
]
"""`verify`, or what stands in its place."""

Choose: TypeAlias = Callable[[NDArray[np.float32], Sequence[int]], int]


def verify(
    rows: NDArray[np.float32],
    drafts: Sequence[int],
    context: SamplingContext,
    max_tokens: int,
    drawn_from: Sequence[TokenDistribution] = (),
) -> Verified:
    """Choose tokens row by row for as long as they are the proposed ones; by rejection sampling where `drawn_from` says
    what the last proposals were drawn from.

    `rows` has shape (len(drafts) + 1, vocabulary): row i follows drafts[:i]. It is edited in place and put back. Ends
    at an end token or after `max_tokens`. Raises BrokenLogitsError and NothingToChooseError.
    """
    matched = len(drafts) - len(drawn_from)

    def choose(row: NDArray[np.float32], block: Sequence[int]) -> int:
        index = len(block)
        if matched <= index < len(drafts):
            return _accept_or_replace(row, context, block, drafts[index], drawn_from[index - matched])
        return sample(row, context, block)

    return verify_by(choose, rows, drafts, context, max_tokens)


def attempt(
    verify_rows: Verify,
    rows: NDArray[np.float32],
    drafts: Sequence[int],
    context: SamplingContext,
    max_tokens: int,
    drawn_from: Sequence[TokenDistribution] = (),
) -> Verified | SequenceFault:
    """As `verify_rows`, with whatever it raises as a value: settings and grammars are one request's, and so are the
    errors they make."""
    try:
        return verify_rows(rows, drafts, context, max_tokens, drawn_from)
    except BrokenLogitsError as error:
        return SequenceFault(str(error))
    except ForerunError as error:
        return SequenceFault(str(error), is_own=True)
    except Exception as error:  # a grammar of somebody else's, say
        logger.exception("choosing a token failed")
        return SequenceFault(f"choosing a token failed: {type(error).__name__}: {error}", is_own=True)


def verify_by(
    choose: Choose, rows: NDArray[np.float32], drafts: Sequence[int], context: SamplingContext, max_tokens: int
) -> Verified:
    """As `verify`, with `choose` giving the token of each row that is reached, from the row and the block before it."""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    accepted = 0
    wanted = context.params.logprobs
    for index, row in enumerate(rows):
        token = choose(row, tokens)
        tokens.append(token)
        if wanted is not None:
            logprobs.append(token_logprobs(row, token, wanted))
        matches = index < len(drafts) and token == drafts[index]
        accepted += matches
        if not matches or token in context.end_tokens or len(tokens) >= max_tokens:
            break
    return Verified(tuple(tokens), accepted, tuple(logprobs) if wanted is not None else None)


def _accept_or_replace(
    row: NDArray[np.float32],
    context: SamplingContext,
    block: Sequence[int],
    proposed: int,
    drawn_from: TokenDistribution,
) -> int:
    """The proposal, or what is drawn in its place."""
    target = distribution(row, context, block)
    index = context.history.output_tokens + len(block)
    p, q = (float(its.probabilities[its.ids == proposed].sum()) for its in (target, drawn_from))
    if uniform(context.seed, index, Stream.ACCEPTANCE) * q < p:
        return proposed
    draft = np.zeros(row.size, np.float32)
    draft[drawn_from.ids] = drawn_from.probabilities
    rest = np.maximum(target.probabilities - draft[target.ids], 0.0)
    if not rest.any():  # the two are equal but for rounding
        rest = target.probabilities
    with np.errstate(divide="ignore"):
        logits = np.log(rest)
    return int(target.ids[winner(target.ids, logits, 1.0, context.seed, index, Stream.REPLACEMENT)])
