"""The growing row of token ids of one request."""

from __future__ import annotations

import numpy as np

from forerun.core.prompt import PromptLayout, Tokens

MEDIA_TOKEN = -1
"""Stands for one logical token of a media span; never sampled, never proposed."""


class TokenHistory:
    """All logical tokens known of a request, prompt first. Owned by its request; others read views.

    [ prompt ........ | output ........ | spare capacity ]
    0                 prompt_tokens     size
    """

    __slots__ = ("_buffer", "prompt_tokens", "size")

    def __init__(self, prompt: PromptLayout, spare: int = 64) -> None:
        self.prompt_tokens = prompt.logical_tokens
        self.size = self.prompt_tokens
        self._buffer = np.empty(self.size + spare, np.int32)
        start = 0
        for segment in prompt.segments:
            stop = start + segment.logical_tokens
            self._buffer[start:stop] = MEDIA_TOKEN if segment.is_media else segment.tokens
            start = stop

    @property
    def tokens(self) -> Tokens:
        """A read-only view of everything known so far."""
        return self.slice(0, self.size)

    @property
    def output_tokens(self) -> int:
        return self.size - self.prompt_tokens

    @property
    def last(self) -> int:
        return int(self._buffer[self.size - 1])

    def token(self, index: int) -> int:
        return int(self._buffer[index])

    def slice(self, start: int, stop: int) -> Tokens:
        """A read-only view of [start, stop); it stays valid, since tokens are only ever appended."""
        view = self._buffer[start:stop]
        view.flags.writeable = False
        return view

    def append(self, token: int) -> None:
        if self.size == self._buffer.size:
            grown = np.empty(self.size * 2 + 64, np.int32)
            grown[: self.size] = self._buffer
            self._buffer = grown
        self._buffer[self.size] = token
        self.size += 1

    def __repr__(self) -> str:
        return f"TokenHistory({self.prompt_tokens} prompt + {self.output_tokens} output)"
