"""The vocabulary of a model: text to tokens and back."""

from __future__ import annotations

import ctypes
from functools import cached_property

import numpy as np
from llama_cpp import llama_cpp

from forerun.core.prompt import Tokens

_PIECE_BUFFER = 64
_SPARE_TOKENS = 16
_INT32_MIN = -(2**31)


class NativeVocabulary:
    """Implements core.step.Vocabulary on a loaded model. Immutable, and safe to use from several threads.

    `model` is the native model; `owner` keeps it from being freed.
    """

    def __init__(self, model: int, owner: object) -> None:
        self._owner = owner
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self.size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.bos: int = llama_cpp.llama_vocab_bos(self._vocab)
        """Beginning of a text, -1 where the vocabulary has none."""
        self.eos: int = llama_cpp.llama_vocab_eos(self._vocab)
        """End of a text, -1 where the vocabulary has none."""
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(self._vocab)
        """Whether `tokenize(add_special=True)` starts with `bos`."""
        self.chat_template: str | None = _chat_template(model)
        """The model's own Jinja template."""
        self._pieces: dict[int, bytes] = {}

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """All tokens that end a generation (end of text, of turn, of message)."""
        vocab, is_end = self._vocab, llama_cpp.llama_vocab_is_eog
        return frozenset(token for token in range(self.size) if is_end(vocab, token))

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """The tokens that `tokenize` reads with `parse_special` alone, by their spelling."""
        vocab, attributes = self._vocab, llama_cpp.llama_vocab_get_attr
        special = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        tokens = (token for token in range(self.size) if attributes(vocab, token) & special)
        return {text: token for token in tokens if (text := self.token_text(token))}

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the text; empty for control tokens. Raises IndexError outside the vocabulary."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: int) -> bytes:
        self._check(token)
        length = _PIECE_BUFFER
        while True:
            buffer = ctypes.create_string_buffer(length)
            written: int = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, length, 0, False)
            if written >= 0:
                return buffer.raw[:written]
            length = -written

    def token_text(self, token: int) -> str:
        """A token as the vocabulary spells it, control tokens included. Raises IndexError outside the vocabulary."""
        self._check(token)
        text: bytes = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def _check(self, token: int) -> None:
        # Native code throws, which ends the process, for ids that it does not know.
        if not 0 <= token < self.size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.size} tokens")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        """Token ids of a text.

        `add_special` adds what the model wants around a text (such as `bos`); `parse_special` reads control tokens
        written in the text (`<|im_end|>`) as such: only for templates, never for what a user wrote.
        """
        encoded = _utf8(text)
        room = len(encoded) + _SPARE_TOKENS
        while True:
            tokens = np.empty(room, np.int32)
            target = tokens.ctypes.data_as(llama_cpp.llama_token_p)
            count: int = llama_cpp.llama_tokenize(
                self._vocab, encoded, len(encoded), target, room, add_special, parse_special
            )
            if count >= 0:
                result = tokens[:count].copy()
                result.flags.writeable = False
                return result
            if count == _INT32_MIN:
                raise OverflowError(f"a text of {len(encoded)} bytes has more tokens than fit 32 bits")
            room = -count

    def __repr__(self) -> str:
        return f"NativeVocabulary({self.size} tokens)"


def _chat_template(model: int) -> str | None:
    template: bytes | None = llama_cpp.llama_model_chat_template(model, None)
    return None if template is None else template.decode("utf-8", "replace")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # surrogates, as JSON's \ud83d escapes give: join pairs, replace lone ones
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
