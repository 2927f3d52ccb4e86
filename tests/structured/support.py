"""A vocabulary of single bytes and a few words, and answers followed through a constraint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout
from forerun.structured.compiling import compiled
from forerun.structured.constraint import GrammarConstraint
from forerun.structured.tokens import Tokens, TokenTable

WORDS = (b'{"', b'": ', b"name", b'"name"', b"true", b"</", b"</think>", b"think", b">\n", b">{", b"\n\n", b"hello")
CONTROL = (b"<|end|>", b"<|stop|>", b"<tool_call>", b"[CALLS]")
END, STOP, TOOL_CALL, CALLS = (256 + len(WORDS) + index for index in range(4))
TABLE = TokenTable(
    (*(bytes([code]) for code in range(256)), *WORDS, *CONTROL),
    frozenset({END, STOP, TOOL_CALL, CALLS}),
    frozenset({END, STOP}),
)
TOKENS = Tokens(TABLE)
WORD_IDS = {word: 256 + index for index, word in enumerate(WORDS)}


def schema(text: str, after: str = "") -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, text, after)


def regex(text: str, after: str = "") -> Grammar:
    return Grammar(GrammarKind.REGEX, text, after)


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


def gbnf(text: str) -> Grammar:
    return Grammar(GrammarKind.GBNF, text)


def constraint(grammar: Grammar) -> GrammarConstraint:
    return compiled(grammar, TOKENS)


def history(tokens: Sequence[int] = ()) -> TokenHistory:
    """An answer so far."""
    known = TokenHistory(PromptLayout.of_text([7, 7]))
    for token in tokens:
        known.append(token)
    return known


def bytes_of(text: str | bytes) -> list[int]:
    """A token for each byte."""
    return list(text.encode() if isinstance(text, str) else text)


def fits(grammar: Grammar, text: str | bytes) -> bool:
    """Whether an answer may be this text, a byte at a time, and end there."""
    tokens = [*bytes_of(text), END]
    return constraint(grammar).accepted(history(), (), tokens) == len(tokens)


def begins(grammar: Grammar, text: str | bytes) -> bool:
    """Whether an answer may begin like this."""
    tokens = bytes_of(text)
    return constraint(grammar).accepted(history(), (), tokens) == len(tokens)


def legal(own: GrammarConstraint, tokens: Sequence[int]) -> set[int]:
    """What may come after a block that starts the answer."""
    allowed = own.allowed(history(), tokens)
    assert allowed is not None
    return set(np.flatnonzero(allowed).tolist())
