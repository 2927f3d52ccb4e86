"""A conversation kept as the exact tokens the model has read and written.

Text does not tell which tokens it was generated as: tokenising an answer again may give others, and then the cached
prefix ends where they differ. So earlier turns stay tokens, and only what the template adds after them is tokenised:

    turn 1   [ prompt 1 ][ answer 1 as generated ]
    turn 2   [ prompt 1 ][ answer 1 as generated ][ what the template adds: end of turn, message 2, start of answer ]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from forerun.core.prompt import Tokens, as_tokens
from forerun.core.prompt_text import PromptText


class TextCodec(Protocol):
    """Text to tokens and back, as the engine's Tokenizer does it."""

    @property
    def end_tokens(self) -> frozenset[int]: ...

    def tokenize(self, text: PromptText) -> Tokens: ...

    def tokenize_continuation(self, text: PromptText) -> Tokens: ...

    def bytes_of(self, tokens: Iterable[int]) -> bytes: ...


class Conversation:
    """Messages, and the tokens they stand for. `ask`, generate from what it returns, then `answered` or `withdraw`."""

    def __init__(
        self,
        render: Callable[[Sequence[Mapping[str, Any]]], PromptText],
        codec: TextCodec,
        system: str | None = None,
    ) -> None:
        self._render = render
        self._codec = codec
        self.messages: list[Mapping[str, Any]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._text = ""
        self._tokens = as_tokens(())
        """What `_text`, the rendered conversation so far, was read and written as."""
        self._asked = (self._text, self._tokens)

    def ask(self, content: str) -> Tokens:
        """The prompt after one more user message."""
        messages = [*self.messages, {"role": "user", "content": content}]
        text = self._render(messages)
        self._asked = (text.text, self._continued(text))
        self.messages = messages
        return self._asked[1]

    def _continued(self, text: PromptText) -> Tokens:
        whole = self._codec.tokenize(text)
        if not self._text or not text.text.startswith(self._text):
            return whole  # the template changed earlier turns (some leave reasoning out): nothing known is exact
        added = self._codec.tokenize_continuation(text.after(len(self._text)))
        if not np.array_equal(whole[whole.size - added.size :], added):
            return whole  # tokens reach across the cut, so that the parts do not read as the whole does
        return as_tokens(np.concatenate([self._tokens, added]))

    def answered(self, content: str, tokens: Sequence[int]) -> None:
        """Take the answer to the last message over, as text and as the tokens that were generated."""
        self.messages.append({"role": "assistant", "content": content})
        self._text, self._tokens = self._asked
        if tokens and tokens[-1] in self._codec.end_tokens:
            tokens = tokens[:-1]  # the template writes the end of the turn itself
        if self._codec.bytes_of(tokens) == content.encode():
            self._text += content
            self._tokens = as_tokens(np.concatenate([self._tokens, np.asarray(tokens, np.int32)]))

    def withdraw(self) -> None:
        """Forget the last message, which got no answer."""
        self.messages.pop()
