"""Choosing tokens from logits.

Nothing here keeps state between steps: a choice is a function of the logits, the request's parameters, its tokens so
far and (seed, index of the output token). So a rejected draft, a retried step or a resumed request has nothing to roll
back, and the same seed gives the same answer whatever was batched or drafted beside it.

Order of application and each filter's rule are those of llama.cpp (common/sampling.cpp, src/llama-sampler.cpp):
logit bias, penalties, top_k, typical_p, top_p, min_p, temperature. A grammar comes before all that filters: they see
only the tokens it lets come.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.core import race
from forerun.core.grammar import TokenConstraint
from forerun.core.history import TokenHistory
from forerun.core.request import SamplingParams, TokenLogprobs
from forerun.errors import EngineError

_LIKELY_MARGINS = (3.0, 6.0, 12.0)
"""top_p sorts only tokens whose logit is this close to the largest; where these are too few the next, at last all."""
_DRAFTED = 1e-4
"""A draft does not propose tokens less likely than this times the likeliest: whole rows would cost time for nothing."""


class BrokenLogitsError(EngineError):
    """The model returned logits that are no finite numbers."""


class NothingToChooseError(EngineError):
    """A request bans every token, or its grammar does where the vocabulary has none to end the answer with."""


class SamplingContext:
    """What sampling may look at for one request. Read by the runner, owned by the request; `history` grows."""

    __slots__ = ("banned", "constraint", "end_tokens", "history", "is_plain_greedy", "model_ends", "params", "seed")

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        end_tokens: frozenset[int],
        history: TokenHistory,
        constraint: TokenConstraint | None = None,
    ) -> None:
        self.params = params
        self.seed = seed
        self.history = history
        self.constraint = constraint
        self.model_ends = np.array(sorted(end_tokens), np.intp)
        # Under a grammar a banned end comes where nothing else may, and is the end then.
        goes_on = params.ignore_eos and constraint is None
        self.end_tokens = frozenset(params.stop_token_ids) | (frozenset() if goes_on else end_tokens)
        self.banned = end_tokens - frozenset(params.stop_token_ids) if params.ignore_eos else frozenset()
        edits = bool(self.banned or params.logit_bias or _penalises(params))
        self.is_plain_greedy = params.is_greedy and constraint is None and not edits


def _penalises(params: SamplingParams) -> bool:
    return params.penalty_last_n != 0 and (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )


@dataclass(frozen=True, slots=True)
class TokenDistribution:
    """Probabilities of some tokens; all others have none. Both arrays have shape (tokens,), ids are distinct."""

    ids: NDArray[np.intp]
    probabilities: NDArray[np.float32]


def sample(logits: NDArray[np.float32], context: SamplingContext, block: Sequence[int] = ()) -> int:
    """One token from a row of logits (shape: vocabulary). `block`: tokens chosen before it in this step."""
    if context.is_plain_greedy:
        return _likeliest(logits)
    with _edited(logits, context, block):
        if context.params.is_greedy:
            return _likeliest_legal(logits, context, block)
        _likeliest(logits)
        legal = _legal(logits, context, block)
        if legal is not None and legal.size == 1:
            return int(legal[0])
        ids, values = _candidates_among(logits, legal, context.params)
        chosen = race.winner(ids, values, context.params.temperature, context.seed, _index(context, block))
        return chosen if ids is None else int(ids[chosen])


def draft_token(
    logits: NDArray[np.float32], context: SamplingContext, block: Sequence[int] = ()
) -> tuple[int, TokenDistribution | None]:
    """What a draft model proposes, given its own row of logits; and what that was drawn from, None where greedy.

    It runs the race that `sample` will run, so that both choose alike as often as can be. `block`: what it proposed
    before. The least likely tokens are left out, which makes a worse draft by next to nothing and no other answer.
    """
    params = context.params
    if context.is_plain_greedy:
        return _likeliest(logits), None
    with _edited(logits, context, block):
        if params.is_greedy:
            return _likeliest_legal(logits, context, block), None
        _likeliest(logits)
        legal = _legal(logits, context, block)
        if legal is not None and legal.size == 1:
            return int(legal[0]), _certain(legal)
        values = logits if legal is None else logits[legal]
        near = np.flatnonzero(values >= values.max() + np.float32(params.temperature * np.log(_DRAFTED)))
        likely = near if legal is None else legal[near]
        among, values = candidates(logits[likely], params)
    ids = likely if among is None else likely[among]
    chosen = race.winner(ids, values, params.temperature, context.seed, _index(context, block))
    return int(ids[chosen]), TokenDistribution(ids, _softmax(values, params.temperature))


def _index(context: SamplingContext, block: Sequence[int]) -> int:
    """Which output token comes next."""
    return context.history.output_tokens + len(block)


def _likeliest(logits: NDArray[np.float32]) -> int:
    best = int(logits.argmax())
    value = float(logits[best])
    if math.isfinite(value):
        return best
    if value == -math.inf:
        raise NothingToChooseError("logit_bias: no token is left to choose from, all are banned")
    raise BrokenLogitsError("the model's logits are not finite")


def _likeliest_legal(logits: NDArray[np.float32], context: SamplingContext, block: Sequence[int]) -> int:
    """The likeliest token that the grammar lets come; mostly that is the likeliest of all, which is quick to ask."""
    best = _likeliest(logits)
    constraint = context.constraint
    if constraint is None or constraint.accepted(context.history, block, (best,)):
        return best
    legal = _legal(logits, context, block)
    return best if legal is None else int(legal[logits[legal].argmax()])


def _legal(logits: NDArray[np.float32], context: SamplingContext, block: Sequence[int]) -> NDArray[np.intp] | None:
    """The tokens that the grammar lets come and nobody has banned, in order; None: all.

    Where there are none the answer ends: one end token. Whoever takes it sees whether the grammar was complete.
    """
    allowed = None if context.constraint is None else context.constraint.allowed(context.history, block)
    if allowed is None:
        return None
    legal = np.flatnonzero(allowed[: logits.size])
    if legal.size and logits[legal].max() > -np.inf:
        return legal
    ends = context.model_ends[context.model_ends < logits.size]
    if not ends.size:
        raise NothingToChooseError("the grammar lets no token come, and the vocabulary has none to end the answer with")
    best = int(logits[ends].argmax())
    return ends[best : best + 1]


def _candidates_among(
    logits: NDArray[np.float32], legal: NDArray[np.intp] | None, params: SamplingParams
) -> tuple[NDArray[np.intp] | None, NDArray[np.float32]]:
    """What filters leave of the legal tokens (None: of all)."""
    if legal is None:
        return candidates(logits, params)
    kept, values = candidates(logits[legal], params)
    return (legal if kept is None else legal[kept]), values


def _certain(token: NDArray[np.intp]) -> TokenDistribution:
    return TokenDistribution(token, np.ones(1, np.float32))


@contextmanager
def _edited(logits: NDArray[np.float32], context: SamplingContext, block: Sequence[int]) -> Iterator[None]:
    """Meanwhile the row holds what bias and penalties make of it."""
    ids, values = _edits(logits, context, block)
    saved = logits[ids]
    logits[ids] = values
    try:
        yield
    finally:
        logits[ids] = saved


def _edits(
    logits: NDArray[np.float32], context: SamplingContext, block: Sequence[int]
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The few logits that bias and penalties change: their ids and new values. A draft's row may lack some ids."""
    params = context.params
    changed = {token: float(logits[token]) + bias for token, bias in params.logit_bias.items() if token < logits.size}
    for token in context.banned:
        if token < logits.size:
            changed[token] = -np.inf
    if _penalises(params):
        for token, count in _recent_counts(context, block).items():
            if token >= logits.size:
                continue
            value = changed.get(token)
            value = float(logits[token]) if value is None else value
            value = value * params.repetition_penalty if value <= 0 else value / params.repetition_penalty
            changed[token] = value - count * params.frequency_penalty - params.presence_penalty
    return np.fromiter(changed, np.intp, len(changed)), np.fromiter(changed.values(), np.float32, len(changed))


def _recent_counts(context: SamplingContext, block: Sequence[int]) -> Counter[int]:
    history, last_n = context.history, context.params.penalty_last_n
    if last_n < 0:
        last_n = history.size + len(block)
    from_block = block[-last_n:]
    from_history = min(last_n - len(from_block), history.size)
    ids, counts = np.unique(history.slice(history.size - from_history, history.size), return_counts=True)
    recent = Counter(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
    recent.update(from_block)
    return Counter({token: count for token, count in recent.items() if token >= 0})


def distribution(logits: NDArray[np.float32], context: SamplingContext, block: Sequence[int] = ()) -> TokenDistribution:
    """What `sample` draws from, where it does not take the likeliest."""
    with _edited(logits, context, block):
        _likeliest(logits)
        legal = _legal(logits, context, block)
        if legal is not None and legal.size == 1:
            return _certain(legal)
        ids, values = _candidates_among(logits, legal, context.params)
        probabilities = _softmax(values, context.params.temperature)
    return TokenDistribution(np.arange(logits.size) if ids is None else ids, probabilities)


def candidates(
    logits: NDArray[np.float32], params: SamplingParams
) -> tuple[NDArray[np.intp] | None, NDArray[np.float32]]:
    """What top_k, typical_p, top_p and min_p leave: token ids (None: all, in order) and their logits, unscaled."""
    ids: NDArray[np.intp] | None = None
    values = logits
    if 0 < params.top_k < logits.size:
        ids = np.argpartition(logits, logits.size - params.top_k)[-params.top_k :]
        values = logits[ids]
    ids, values = _keep(ids, values, _typical(values, params.typical_p))
    ids, values = _keep(ids, values, _top_p(values, params.top_p))
    return _keep(ids, values, _min_p(values, params.min_p))


def _keep(
    ids: NDArray[np.intp] | None, values: NDArray[np.float32], keep: NDArray[np.intp] | None
) -> tuple[NDArray[np.intp] | None, NDArray[np.float32]]:
    if keep is None:
        return ids, values
    return (keep if ids is None else ids[keep]), values[keep]


def _softmax(values: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float32]:
    weights: NDArray[np.float32] = values - values.max()
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # a temperature next to 0 leaves the likeliest alone
            weights *= np.float32(1 / max(temperature, 1e-30))
    np.exp(weights, out=weights)
    weights /= weights.sum(dtype=np.float64).astype(np.float32)
    return weights


def _typical(values: NDArray[np.float32], typical_p: float) -> NDArray[np.intp] | None:
    """Locally typical sampling, https://arxiv.org/abs/2202.00666: nearest to the expected surprise first."""
    if typical_p >= 1.0:
        return None
    probabilities = _softmax(values)
    with np.errstate(divide="ignore", invalid="ignore"):  # of impossible tokens, which do not count
        surprise = -np.log(probabilities)
        entropy = float(np.sum(probabilities * surprise, where=probabilities > 0))
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(probabilities[order]), typical_p, side="right")) + 1
    return order[:count]


def _top_p(values: NDArray[np.float32], top_p: float) -> NDArray[np.intp] | None:
    """Nucleus sampling, https://arxiv.org/abs/1904.09751: the likeliest tokens that together reach top_p."""
    if top_p >= 1.0:
        return None
    probabilities = _softmax(values)
    for margin in (*_LIKELY_MARGINS, np.inf):
        subset = np.flatnonzero(values >= values.max() - np.float32(margin))
        if probabilities[subset].sum(dtype=np.float64) >= top_p:
            break
    order = subset[np.argsort(-values[subset], kind="stable")]
    cumulative = np.cumsum(probabilities[order], dtype=np.float64)
    return order[: int(np.searchsorted(cumulative, top_p, side="left")) + 1]


def _min_p(values: NDArray[np.float32], min_p: float) -> NDArray[np.intp] | None:
    """Drop tokens less likely than min_p times the likeliest."""
    if min_p <= 0.0:
        return None
    return np.flatnonzero(values >= values.max() + np.float32(np.log(min_p)))


def token_logprobs(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """Natural-log probabilities under the unmodified logits: of `token`, and of the `top` likeliest."""
    largest = logits.max()
    normaliser = float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    best: list[int] = []
    if top:
        best_ids = np.argpartition(logits, logits.size - top)[-top:] if top < logits.size else np.arange(logits.size)
        best = best_ids[np.argsort(-logits[best_ids], kind="stable")].tolist()
    return TokenLogprobs(
        token, float(logits[token]) - normaliser, tuple((i, float(logits[i]) - normaliser) for i in best)
    )
