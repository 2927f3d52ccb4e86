"""A few tokens of an answer, to see limits that a grammar runs into right after it has begun."""

from __future__ import annotations

import numpy as np

from forerun.core.grammar import Grammar
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.errors import InvalidRequestError
from forerun.structured.compiling import compiled
from forerun.structured.tokens import Tokens

_TOKENS = 24


def rehearse(grammar: Grammar, tokens: Tokens) -> None:
    """Compile a grammar and write the beginning of an answer. Raises InvalidRequestError."""
    constraint = compiled(grammar, tokens)
    history = TokenHistory(PromptLayout.of_text([0]))
    block = tokens.split(grammar.after.encode())
    for _ in range(_TOKENS):
        allowed = constraint.allowed(history, block)
        if constraint.problem is not None:
            raise InvalidRequestError("grammar", f"an answer would run into a limit: {constraint.problem}")
        legal = range(tokens.table.size) if allowed is None else np.flatnonzero(allowed).tolist()
        token = next((token for token in legal if token not in tokens.table.end_tokens), None)
        if token is None:
            return
        block = [*block, token]
