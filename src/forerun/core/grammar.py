"""What an answer must look like, as a value; and what knows, while it is written, which tokens may come next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.core.history import TokenHistory
from forerun.errors import InvalidRequestError

logger = logging.getLogger(__name__)
T = TypeVar("T")


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
    free, but for the end: an answer does not end before its grammar has begun. Empty: it holds from the first token
    on."""

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for values that are no grammar; whether it compiles is seen later."""
        try:
            object.__setattr__(self, "kind", GrammarKind(self.kind))
        except ValueError:
            kinds = ", ".join(GrammarKind)
            raise InvalidRequestError("grammar", f"is of one of the kinds {kinds}; got {self.kind!r}") from None
        for name in ("text", "after"):
            value: object = getattr(self, name)
            if not isinstance(value, str):
                raise InvalidRequestError("grammar", f"its {name} is text, got {type(value).__name__}")


class TokenConstraint(Protocol):
    """A compiled grammar at work for one request. Used by one thread, and by no other request.

    Asked by position, never told: it is handed the output so far and moves itself there, forwards or back, so that a
    rejected draft, a retried step or a resumed request has nothing to undo. `block` are tokens chosen after `history`
    in this step. The model's end tokens may come where the answer is whole, and nothing after them.
    """

    @property
    def problem(self) -> str | None:
        """Why it lets nothing more come, where that is not the grammar's doing: a limit, say."""
        ...

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which tokens may come next (shape: the target's vocabulary); None where all may."""
        ...

    def accepted(self, history: TokenHistory, block: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of these tokens, first ones first, may come next, one after another. Cheaper than `allowed`."""
        ...

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:
        """Tokens that will hardly be others, at most `limit`: their text must come. None where there is a choice."""
        ...


class GuardedConstraint:
    """Any constraint, kept from doing harm: one that raises lets nothing more come, and its answer ends there."""

    def __init__(self, constraint: TokenConstraint, vocabulary_size: int) -> None:
        self._constraint = constraint
        self._size = vocabulary_size
        self._error: str | None = None

    @property
    def problem(self) -> str | None:
        return self._error or self._constraint.problem

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:
        allowed = self._guarded(lambda: self._constraint.allowed(history, block), None)
        return allowed if self._error is None else np.zeros(self._size, np.bool_)

    def accepted(self, history: TokenHistory, block: Sequence[int], tokens: Sequence[int]) -> int:
        return self._guarded(lambda: self._constraint.accepted(history, block, tokens), 0)

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:
        return self._guarded(lambda: self._constraint.forced(history, limit), ())

    def _guarded(self, ask: Callable[[], T], nothing: T) -> T:
        if self._error is not None:
            return nothing
        try:
            return ask()
        except Exception as error:  # compiled by somebody else's code: whatever it raises ends one answer only
            logger.exception("a grammar failed")
            self._error = f"it failed: {type(error).__name__}: {error}"
            return nothing

    def __repr__(self) -> str:
        return f"GuardedConstraint({self._constraint!r})"
