"""Names for tokens and tenants, by which a recording can be replayed but not read.

A token's name depends on all tokens before it: prompts get the same names as far as they are the same, and nothing else
can be told from them, neither which tokens they are nor where one occurs again. Names come from a key that is drawn for
each recording and kept nowhere.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from forerun.core.prompt import PromptLayout, PromptSegment, Tokens

_DIGITS = 32
"""Hexadecimal digits of a name for what is no token."""
_WORD = 8
_NAME_BITS = 31
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The finalizer of SplitMix64, https://prng.di.unimi.it/splitmix64.c."""


class Disguise:
    """One recording's names. `before` is what `text` or `layout` returned for the text before; 0 at its start."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._salt = np.uint64(self._number(b"salt"))
        self._base = self._number(b"base") | 1  # odd: it has an inverse modulo 2**64
        self._powers = np.empty(0, np.uint64)
        self._inverses = np.empty(0, np.uint64)

    def of(self, text: str) -> str:
        """A name of 32 hexadecimal digits; "" for ""."""
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=_DIGITS // 2).hexdigest() if text else ""

    def scope(self, scope: str) -> str:
        """A scope (core.adapters.scope_of) whose tenant goes by another name."""
        tenant, adapters = scope[:_DIGITS], scope[_DIGITS:]
        return tenant + adapters if not tenant.strip("0") else self.of(tenant) + adapters

    def text(self, before: int, tokens: Tokens | tuple[int, ...]) -> tuple[Tokens, int]:
        """Names for a run of tokens, and what goes on from it."""
        ids = np.asarray(tokens, np.uint64)
        if not ids.size:
            return np.empty(0, np.int32), before
        powers, inverses = self._power_tables(ids.size)
        sums = np.cumsum((ids + np.uint64(1)) * inverses, dtype=np.uint64) + np.uint64(before)
        hashes: NDArray[np.uint64] = powers * sums  # h[i + 1] = base * h[i] + id + 1, for all i at once
        return (_mixed(hashes ^ self._salt) >> np.uint64(64 - _NAME_BITS)).astype(np.int32), int(hashes[-1])

    def layout(self, layout: PromptLayout, before: int = 0) -> tuple[PromptLayout, int]:
        """A prompt by its names, and what goes on from it."""
        segments, end = self.segments(layout.segments, before)
        return PromptLayout(segments), end

    def segments(self, segments: Iterable[PromptSegment], before: int) -> tuple[list[PromptSegment], int]:
        """The same for segments that go on from `before`."""
        disguised: list[PromptSegment] = []
        for segment in segments:
            span = segment.media_span
            if span is None:
                names, before = self.text(before, segment.tokens)
                disguised.append(PromptSegment(names, None))
            else:
                disguised.append(
                    PromptSegment.media(self.of(span.identity), span.logical_tokens, span.native_positions)
                )
                before = self._number(before.to_bytes(_WORD, "little") + span.identity.encode())
        return disguised, before

    def _number(self, data: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(data, key=self._key, digest_size=_WORD).digest(), "little")

    def _power_tables(self, count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The first `count` powers of the base, from the first on, and their inverses modulo 2**64."""
        if self._powers.size < count:
            size = 1 << (count - 1).bit_length()
            self._powers = np.multiply.accumulate(np.full(size, self._base, np.uint64))
            self._inverses = np.multiply.accumulate(np.full(size, pow(self._base, -1, 2**64), np.uint64))
        return self._powers[:count], self._inverses[:count]


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MIX[0]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MIX[1]
    return numbers ^ (numbers >> np.uint64(31))
