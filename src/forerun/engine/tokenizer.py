"""Text to tokens on any thread, for as long as the model is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from forerun.core.prompt import Tokens, as_tokens
from forerun.core.prompt_text import PromptText
from forerun.engine.parts import TextVocabulary
from forerun.errors import EngineClosedError, InvalidRequestError

T = TypeVar("T")


class Tokenizer:
    """Guards the vocabulary, which is native memory: the engine thread frees it only while nobody is inside.

    Any number may be inside at once, so that nobody waits for somebody else's long text.
    """

    def __init__(self, vocabulary: TextVocabulary) -> None:
        self._vocabulary: TextVocabulary | None = vocabulary
        self._retired = ""
        self._users = 0
        self._nobody_inside = threading.Condition()
        self._longest = 0
        self._bos_text = "" if vocabulary.bos < 0 else vocabulary.token_text(vocabulary.bos)
        self.end_tokens = vocabulary.end_tokens
        self.size = vocabulary.size

    def fewest_tokens(self, text: str) -> int:
        """So many tokens a text has at least, by its length alone."""
        with self._inside() as vocabulary:
            self._longest = self._longest or _longest(vocabulary)
        return -(-len(text.encode(errors="surrogatepass")) // self._longest)

    def tokenize(self, text: str | PromptText) -> Tokens:
        """A whole prompt, with what the model wants before it unless the text brings it (rendered templates may).

        Control tokens are read in it, but for what a PromptText says is plain.
        """
        prompt = PromptText(text) if isinstance(text, str) else text
        begins_plain = bool(prompt.plain) and prompt.plain[0][0] == 0
        brings_start = bool(self._bos_text) and prompt.text.startswith(self._bos_text) and not begins_plain
        return self._tokenize(prompt, add_special=not brings_start)

    def tokenize_continuation(self, text: str | PromptText) -> Tokens:
        """Text that follows other text."""
        return self._tokenize(PromptText(text) if isinstance(text, str) else text, add_special=False)

    def tokenize_plain(self, text: str) -> Tokens:
        """A text with what the model wants around it; control tokens that are written in it stay text."""
        check_unicode(text)
        with self._inside() as vocabulary:
            return vocabulary.tokenize(text, add_special=True, parse_special=False)

    def _tokenize(self, prompt: PromptText, *, add_special: bool) -> Tokens:
        check_unicode(prompt.text)
        with self._inside() as vocabulary:
            if not prompt.plain:
                return vocabulary.tokenize(prompt.text, add_special=add_special, parse_special=True)
            parts = [
                vocabulary.tokenize(text, add_special=add_special and number == 0, parse_special=not is_plain)
                for number, (text, is_plain) in enumerate(prompt.parts())
            ]
        return as_tokens(np.concatenate(parts))

    def bytes_of(self, tokens: Iterable[int]) -> bytes:
        """The bytes that tokens add to the text."""
        with self._inside() as vocabulary:
            return b"".join([vocabulary.piece(token) for token in tokens])

    def shown(self, tokens: Iterable[int]) -> str:
        """Text of tokens for people, control tokens as a template writes them; media (ids below 0) are left out."""
        with self._inside() as vocabulary:
            pieces = [
                vocabulary.piece(token) or vocabulary.token_text(token).encode() for token in tokens if token >= 0
            ]
        return b"".join(pieces).decode("utf-8", "replace")

    def read(self, question: Callable[[TextVocabulary], T]) -> T:
        """What `question` finds in the vocabulary, which it may look at until it returns."""
        with self._inside() as vocabulary:
            return question(vocabulary)

    @contextmanager
    def _inside(self) -> Iterator[TextVocabulary]:
        with self._nobody_inside:
            vocabulary = self._vocabulary
            if vocabulary is None:
                raise EngineClosedError(self._retired)
            self._users += 1
        try:
            yield vocabulary
        finally:
            with self._nobody_inside:
                self._users -= 1
                self._nobody_inside.notify_all()

    def retire(self, reason: str) -> None:
        """Wait for users to leave and let nobody in again: EngineClosedError tells them why."""
        with self._nobody_inside:
            self._vocabulary = None
            self._retired = reason
            self._nobody_inside.wait_for(lambda: not self._users)


def _longest(vocabulary: TextVocabulary) -> int:
    """Bytes of text that one token can stand for."""
    pieces = max(len(vocabulary.piece(token)) for token in range(vocabulary.size))
    return max(pieces, *(len(spelling.encode()) for spelling in vocabulary.control_tokens), 1)


def check_unicode(text: str) -> None:
    """Refuse lone surrogates, which no text holds: they stand for bytes that were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])[1:-1]
        said = f"is not valid Unicode at character {error.start}: {half} is a lone surrogate, half a character"
        raise InvalidRequestError("prompt", said) from None
