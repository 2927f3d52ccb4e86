"""What an engine refuses of a request's parameters: the same checks in the scheduler and before a response begins."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from forerun.core.adapters import require_known
from forerun.core.request import AUTO, SamplingParams
from forerun.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Facts of one engine."""

    vocabulary_size: int
    adapters: Collection[str] = ()
    """By their names; others are not known."""
    fixed_drafts: int = 0
    """Drafted tokens a step of an engine that measured no costs: none that "auto" could decide by. 0: it has, or drafts
    nothing."""
    accepts_at_random: bool = False
    """Drafts are accepted whatever the model says, so no grammar can be enforced."""

    def check(self, params: SamplingParams) -> None:
        """Raise InvalidRequestError, naming the field, for what this engine cannot do."""
        if params.speculation == AUTO and self.fixed_drafts:
            fixed = f"this engine drafts {self.fixed_drafts} tokens a step and has measured no costs"
            raise InvalidRequestError(
                "speculation", f"cannot be 'auto': {fixed}; give a number, or load it with speculation='auto'"
            )
        self.check_token_ids("logit_bias", params.logit_bias)
        self.check_token_ids("stop_token_ids", params.stop_token_ids)
        require_known(params.adapter_set, self.adapters)
        if params.grammar is not None and self.accepts_at_random:
            raise InvalidRequestError("grammar", "cannot be enforced where drafts are accepted at random; leave it out")

    def check_token_ids(self, field: str, tokens: Iterable[int]) -> None:
        """Raise InvalidRequestError for ids outside the vocabulary."""
        worst = max(tokens, default=0)
        if worst >= self.vocabulary_size:
            raise InvalidRequestError(
                field, f"token id {worst} is outside the vocabulary of {self.vocabulary_size} tokens"
            )
