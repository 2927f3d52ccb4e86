"""Who may be inside the vocabulary, and when it may be freed."""

from __future__ import annotations

import threading

import pytest

from forerun.engine.tokenizer import Tokenizer
from forerun.errors import EngineClosedError, InvalidRequestError
from forerun.testing.served import ByteVocabulary


def test_a_vocabulary_is_retired_when_the_last_user_has_left() -> None:
    tokenizer = Tokenizer(ByteVocabulary())
    inside, leaves, retired = threading.Event(), threading.Event(), threading.Event()

    def use(_vocabulary: object) -> None:
        inside.set()
        assert leaves.wait(10)

    def retire() -> None:
        tokenizer.retire("closed")
        retired.set()

    user = threading.Thread(target=tokenizer.read, args=(use,))
    user.start()
    assert inside.wait(10)
    assert tokenizer.bytes_of([97]) == b"a"  # one user does not keep others out
    owner = threading.Thread(target=retire)
    owner.start()
    assert not retired.wait(0.05)
    leaves.set()
    assert retired.wait(10)
    with pytest.raises(EngineClosedError, match="closed"):
        tokenizer.tokenize("a")
    user.join()
    owner.join()


def test_a_text_has_at_least_the_tokens_its_bytes_need() -> None:
    tokenizer = Tokenizer(ByteVocabulary())
    longest = len("<|im_start|>")
    assert tokenizer.fewest_tokens("<|im_start|>" * 7) == 7 == len(tokenizer.tokenize("<|im_start|>" * 7))
    assert tokenizer.fewest_tokens("é" * longest) == 2
    assert tokenizer.fewest_tokens("\ud800") == 1


def test_a_lone_surrogate_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"character 1: \\ud800 is a lone surrogate"):
        Tokenizer(ByteVocabulary()).tokenize("a\ud800")
