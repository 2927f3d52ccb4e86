"""What an answer must look like, as a value; and what knows, while it is written, which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.history import TokenHistory


class GrammarKind(StrEnum):
    """How `Grammar.text` is written."""

    JSON_SCHEMA = "json_schema"
    """A JSON Schema, as JSON text. `{"type": "object"}` is any object."""
    REGEX = "regex"
    """The whole answer matches it (Rust regex syntax, as llguidance reads it)."""
    LARK = "lark"
    """llguidance's dialect of Lark."""
    GBNF = "gbnf"
    """llama.cpp's notation."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like."""

    kind: GrammarKind
    text: str
    after: str = ""
    """The grammar starts behind the first occurrence of this text (the end of reasoning, say); what comes before is
    free. Empty: it holds from the first token on."""


class TokenConstraint(Protocol):
    """A compiled grammar at work for one request. Used by one thread.

    Asked by position, never told: it is handed the output so far and moves itself there, forwards or back, so that a
    rejected draft, a retried step or a resumed request has nothing to undo. `block` are tokens chosen after `history`
    in this step.
    """

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which tokens may come next (shape: the target's vocabulary); None where all may."""
        ...

    def accepted(self, history: TokenHistory, tokens: Sequence[int]) -> int:
        """How many of these tokens, first ones first, may follow one another after the output so far."""
        ...

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:
        """Tokens that must come next, at most `limit`; none where there is a choice."""
        ...
