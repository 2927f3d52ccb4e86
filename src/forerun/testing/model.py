"""The fake model: what it says next is a hash of the very cells that a sequence holds."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.adapters import NO_CONTENTS, AdapterSet, scope_of
from forerun.core.prompt import PromptSegment
from forerun.core.race import uniform

_LOGIT_SPREAD = 6.0


class FakeVocabulary:
    """A handful of tokens. By default: "a", "b", the end of a turn, and the two bytes of "é"."""

    def __init__(
        self, pieces: Sequence[bytes] = (b"a", b"b", b"", b"\xc3", b"\xa9"), end_tokens: Iterable[int] = (2,)
    ) -> None:
        self._pieces = tuple(pieces)
        self._end_tokens = frozenset(end_tokens)

    @property
    def size(self) -> int:
        return len(self._pieces)

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._end_tokens

    def piece(self, token: int) -> bytes:
        return self._pieces[token]


def next_digest(digest: int, code: int, position: int) -> int:
    """Hash of a sequence after one more token."""
    return hash((digest, code, position)) & (2**63 - 1)


def adapted(codes: Iterable[int], adapters: AdapterSet, contents: Mapping[str, str] = NO_CONTENTS) -> list[int]:
    """What the cells of some tokens hold where they are evaluated with adapters. `contents`: of each adapter."""
    if not adapters:
        return list(codes)
    salt = zlib.crc32(scope_of("", adapters, contents).encode())
    return [hash((salt, code)) for code in codes]


def media_codes(segment: PromptSegment) -> list[int]:
    """What the cells of a media span hold."""
    span = segment.media_span
    assert span is not None
    seed = zlib.crc32(span.identity.encode()) + 10**7
    return [seed + index for index in range(span.logical_tokens)]


def fake_logits(digest: int, vocabulary_size: int) -> NDArray[np.float32]:
    """The fake model: logits of shape (vocabulary,) that depend on the digest alone."""
    return np.array([_LOGIT_SPREAD * uniform(digest, token) for token in range(vocabulary_size)], np.float32)
