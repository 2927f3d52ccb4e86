"""Grammars of a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.history import TokenHistory
from forerun.core.step import Vocabulary

Next = Callable[[tuple[int, ...]], Collection[int]]
"""What may come after the answer so far, end tokens included."""


class FakeConstraint:
    """Implements core.grammar.TokenConstraint by a function of the answer so far; remembers nothing.

    `problem_after`: from so many tokens on it lets nothing come, as a constraint that ran into a limit.
    """

    def __init__(self, vocabulary: Vocabulary, following: Next, problem_after: int | None = None) -> None:
        self._size = vocabulary.size
        self._end_tokens = vocabulary.end_tokens
        self._following = following
        self._problem_after = problem_after
        self._has_problem = False

    @classmethod
    def of_sentences(cls, vocabulary: Vocabulary, sentences: Iterable[Sequence[int]]) -> FakeConstraint:
        """The answer is one of these."""
        known = [tuple(sentence) for sentence in sentences]

        def following(output: tuple[int, ...]) -> set[int]:
            size = len(output)
            begun = [sentence for sentence in known if sentence[:size] == output]
            ends = vocabulary.end_tokens if output in known else frozenset()
            return {sentence[size] for sentence in begun if len(sentence) > size} | ends

        return cls(vocabulary, following)

    @property
    def problem(self) -> str | None:
        return f"out of breath after {self._problem_after} tokens" if self._has_problem else None

    def allowed(self, history: TokenHistory, block: Sequence[int]) -> NDArray[np.bool_] | None:
        mask = np.zeros(self._size, np.bool_)
        mask[list(self._next((*_output(history), *block)))] = True
        return None if mask.all() else mask

    def accepted(self, history: TokenHistory, block: Sequence[int], tokens: Sequence[int]) -> int:
        output = (*_output(history), *block)
        for count, token in enumerate(tokens):
            if token not in self._next(output):
                return count
            output = (*output, token)
        return len(tokens)

    def forced(self, history: TokenHistory, limit: int) -> Sequence[int]:
        output = _output(history)
        tokens: list[int] = []
        while len(tokens) < limit and len(choices := self._next((*output, *tokens))) == 1:
            tokens += choices
        return tokens

    def _next(self, output: tuple[int, ...]) -> Collection[int]:
        if output and output[-1] in self._end_tokens:
            return ()
        self._has_problem = self._problem_after is not None and len(output) >= self._problem_after
        return () if self._has_problem else self._following(output)


def _output(history: TokenHistory) -> tuple[int, ...]:
    return tuple(history.slice(history.prompt_tokens, history.size).tolist())
