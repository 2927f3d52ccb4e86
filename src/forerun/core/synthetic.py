"""Synthetic acceptance: drafts are accepted by a random number, so that what speculation costs, and what its control
decides, can be measured at any acceptance without a draft that has it. The text that comes out means nothing.

Everything real stays: the same rows are evaluated, a choice is sampled from each, memories are cut behind rejections.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.race import uniform
from forerun.core.sampling import SamplingContext, TokenDistribution, sample
from forerun.core.step import DraftRequest, Proposal
from forerun.core.verification import Verified, verify_by

_STREAM = 0x5EED
"""Sets these random numbers apart from those that sampling draws for the same seed."""


class SyntheticAcceptance:
    """Stands where `verify` does: each drafted token that is reached is accepted with one probability.

    Deterministic: what happens to a draft of an output token depends on the request's seed and the token's index alone.
    """

    def __init__(self, probability: float) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"a probability lies between 0 and 1, got {probability}")
        self.probability = probability

    def accepts(self, seed: int, output_index: int) -> bool:
        """Whether a draft for the output token at `output_index` is accepted."""
        return uniform(seed ^ _STREAM, output_index) < self.probability

    def verify(
        self,
        rows: NDArray[np.float32],
        drafts: Sequence[int],
        context: SamplingContext,
        max_tokens: int,
        drawn_from: Sequence[TokenDistribution] = (),
    ) -> Verified:
        """As core.verification.verify, but for who decides. A rejected token gives way to the model's own choice, or to
        its second choice where that is the rejected one."""
        del drawn_from
        done = context.history.output_tokens

        def choose(row: NDArray[np.float32], block: Sequence[int]) -> int:
            index = len(block)
            token = sample(row, context, block)
            if index >= len(drafts):
                return token
            if self.accepts(context.seed, done + index):
                return drafts[index]
            return _another(row, token, context, block) if token == drafts[index] else token

        return verify_by(choose, rows, drafts, context, max_tokens)

    def __repr__(self) -> str:
        return f"SyntheticAcceptance({self.probability:g})"


def _another(row: NDArray[np.float32], token: int, context: SamplingContext, block: Sequence[int]) -> int:
    """What would be chosen if `token` did not exist."""
    logit = row[token]
    row[token] = -np.inf
    try:
        return sample(row, context, block)
    finally:
        row[token] = logit


class RepeatingDrafter:
    """Always proposes as much as it may: the last token again, or another where that one would end the answer."""

    name = "synthetic"

    def __init__(self, end_tokens: frozenset[int] = frozenset()) -> None:
        self._end_tokens = end_tokens
        self._fallback = next(token for token in range(len(end_tokens) + 1) if token not in end_tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal((self._token(int(request.tokens[-1])),) * request.limit) for request in requests]

    def _token(self, last: int) -> int:
        return self._fallback if last < 0 or last in self._end_tokens else last
