"""A vocabulary as llguidance wants it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from llguidance import LLTokenizer, TokenizerWrapper

from forerun.engine.parts import TextVocabulary


@dataclass(frozen=True)
class TokenTable:
    """All tokens of a vocabulary, as plain values: what compiling a grammar takes. Pickles."""

    pieces: tuple[bytes, ...]
    """What each token adds to the text; control tokens as templates write them."""
    control: frozenset[int]
    """Tokens that no text gives."""
    end_tokens: frozenset[int]

    @classmethod
    def of(cls, vocabulary: TextVocabulary) -> TokenTable:
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        control = frozenset(token for token, piece in enumerate(pieces) if not piece)
        shown = tuple(piece or vocabulary.token_text(token).encode() for token, piece in enumerate(pieces))
        return cls(shown, control, vocabulary.end_tokens)

    @property
    def size(self) -> int:
        return len(self.pieces)

    @cached_property
    def control_ids(self) -> Mapping[bytes, int]:
        """Control tokens by how they are written."""
        return {self.pieces[token]: token for token in sorted(self.control, reverse=True) if self.pieces[token]}

    @cached_property
    def _ids(self) -> Mapping[bytes, int]:
        known = {piece: token for token, piece in enumerate(self.pieces) if token not in self.control}
        known.pop(b"", None)
        return known

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)

    def split(self, data: bytes) -> list[int]:
        """Tokens that spell `data`, the longest first; bytes that no token has are left out."""
        tokens: list[int] = []
        start = 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._ids), None)
            if end is None:
                start += 1
                continue
            tokens.append(self._ids[data[start:end]])
            start = end
        return tokens


class Tokens:
    """A table and llguidance's tokenizer of it. With `vocabulary`, text is split as the model's own tokenizer does,
    which forced text wants; that may be native memory, and is not touched once `close` has returned. Any thread.
    """

    def __init__(self, table: TokenTable, vocabulary: TextVocabulary | None = None) -> None:
        self.table = table
        self._vocabulary = vocabulary
        self._in_use = threading.Lock()
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(_Spelling(table, self)), n_vocab=table.size, eos_token=sorted(table.end_tokens)
        )

    def split(self, data: bytes) -> list[int]:
        """Tokens that spell `data`."""
        with self._in_use:
            if self._vocabulary is not None:
                text = data.decode("utf-8", "replace")
                tokens: list[int] = self._vocabulary.tokenize(text, add_special=False, parse_special=False).tolist()
                # Some tokenizers put a space before every text, which is not there.
                if b"".join([self.table.pieces[token] for token in tokens]) == data:
                    return tokens
        return self.table.split(data)

    def close(self) -> None:
        """Wait for users of the vocabulary to leave, and let nobody in again."""
        with self._in_use:
            self._vocabulary = None


class _Spelling:
    """What llguidance's TokenizerWrapper wraps."""

    def __init__(self, table: TokenTable, tokens: Tokens) -> None:
        self.tokens = list(table.pieces)
        self.special_token_ids = sorted(table.control)
        self.eos_token_id = min(table.end_tokens)
        self.bos_token_id = None
        self._split = tokens.split

    def __call__(self, text: bytes | str) -> list[int]:
        return self._split(text if isinstance(text, bytes) else text.encode())
