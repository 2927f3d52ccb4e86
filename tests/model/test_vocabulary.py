"""Text to tokens and back."""

from __future__ import annotations

import time

import numpy as np
import pytest

from forerun.native.model import LlamaModel

pytestmark = pytest.mark.model

TEXTS = [
    "",
    " ",
    "Why is the sky blue?",
    "naïve café — 天空是蓝色的 🌈👩‍👩‍👧",
    "a\0b",
    "tab\t\n\n\n  indented",
    "<|im_end|>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(text: str, smollm2: LlamaModel) -> None:
    vocabulary = smollm2.vocabulary
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
    assert tokens.dtype == np.int32
    assert not tokens.flags.writeable
    assert b"".join(map(vocabulary.piece, tokens.tolist())) == text.encode()


def test_control_tokens_are_read_only_where_asked_and_add_no_text(smollm2: LlamaModel) -> None:
    vocabulary = smollm2.vocabulary
    (token,) = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=True).tolist()
    assert token in vocabulary.end_tokens
    assert token == vocabulary.eos
    assert vocabulary.piece(token) == b""
    assert vocabulary.token_text(token) == "<|im_end|>"
    assert vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=False).size > 1


def test_the_chat_template_is_the_models_own(smollm2: LlamaModel) -> None:
    template = smollm2.vocabulary.chat_template
    assert template is not None
    assert "<|im_start|>" in template


def test_surrogates_are_joined_or_replaced(smollm2: LlamaModel) -> None:
    vocabulary = smollm2.vocabulary
    tokens = vocabulary.tokenize("\ud83c\udf08 \ud83c", add_special=False, parse_special=False)
    assert b"".join(map(vocabulary.piece, tokens.tolist())).decode() == "🌈 \ufffd"


@pytest.mark.parametrize("token", [-1, 49152, 2**31])
def test_tokens_outside_the_vocabulary_are_refused(token: int, smollm2: LlamaModel) -> None:
    assert smollm2.vocabulary.size == 49152
    with pytest.raises(IndexError, match=str(token)):
        smollm2.vocabulary.piece(token)
    with pytest.raises(IndexError):
        smollm2.vocabulary.token_text(token)


def test_a_long_text_is_tokenized_in_well_under_a_second_per_hundred_thousand_tokens(smollm2: LlamaModel) -> None:
    text = "Why is the sky blue, and what is a rainbow? " * 10_000
    start = time.perf_counter()
    tokens = smollm2.vocabulary.tokenize(text, add_special=False, parse_special=False)
    assert tokens.size > 100_000
    assert time.perf_counter() - start < 5
