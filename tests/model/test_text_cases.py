"""Cases T1 and T2: no beginning of a stop string and no broken character is ever shown, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forerun import Engine, FinishReason, Output, SamplingParams
from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.model.serving import Ids, answer, ids_of, serving, some_tokens, streamed, text_of
from tests.support.tiny_models import QUIET_TOKENS, TinyModel

pytestmark = pytest.mark.model

REPLACEMENT = "\ufffd"
LENGTH = 40


@pytest.fixture(params=["no draft", "draft = target", "poor draft"])
def engine(request: pytest.FixtureRequest, tiny_dense_path: Path, tiny_poor_draft_path: Path) -> Iterator[Engine]:
    """The tiny model, always computing alike: equal requests get equal answers."""
    drafts = {"no draft": None, "draft = target": tiny_dense_path, "poor draft": tiny_poor_draft_path}
    draft = drafts[request.param]
    options = {"draft": str(draft), "speculation": 8} if draft else {}
    with serving(tiny_dense_path, reuse_prefixes=False, **options) as made:
        yield made


def both_ways(engine: Engine, prompt: Ids | str, params: SamplingParams) -> tuple[list[Output], Output]:
    """The answer piece by piece and whole; they agree."""
    pieces = streamed(engine, prompt, params)
    (whole,) = engine.generate(prompt, params)
    assert text_of(pieces) == whole.text
    assert tuple(ids_of(pieces)) == whole.token_ids
    assert pieces[-1].finish_reason is whole.finish_reason
    return pieces, whole


def spelled(engine: Engine, tokens: tuple[int, ...] | Ids) -> str:
    """The whole characters that tokens spell, by an independent reading: what is no UTF-8 is left out."""
    return engine.tokenizer.bytes_of(tokens).decode("utf-8", "ignore")


def first_end(text: str, stops: tuple[str, ...]) -> int:
    """Where the answer is cut: before the stop that is completed first, the longer one where two are."""
    return min((text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text)[1]


# --- T1: stop strings ---


@pytest.mark.parametrize("tokens", [2, 3, 4, 5])
def test_a_stop_string_across_several_tokens_is_never_shown_in_part(engine: Engine, tokens: int) -> None:
    checked = 0
    for seed in range(2):
        prompt = some_tokens(30, seed)
        ids = answer(engine, prompt, SamplingParams(max_tokens=LENGTH)).token_ids
        text = spelled(engine, ids)
        for first in (1, 9):
            before, until = (spelled(engine, ids[:count]) for count in (first, first + tokens))
            # Not the edges of tokens: the stop begins and ends inside one.
            for stop in {until[len(before) :], until[len(before) + 1 :], until[len(before) : -1]} - {""}:
                pieces, whole = both_ways(engine, prompt, SamplingParams(max_tokens=LENGTH, stop=(stop,)))
                at = text.find(stop)
                assert whole.text == text[:at]
                assert whole.finish_reason is FinishReason.STOP
                assert len(whole.token_ids) <= first + tokens
                shown = ""
                for piece in pieces:
                    shown += piece.text
                    assert text[:at].startswith(shown)
                checked += 1
    assert checked > 8


def test_of_overlapping_stop_strings_the_one_completed_first_ends_the_answer(engine: Engine) -> None:
    for seed in range(2):
        prompt = some_tokens(30, seed)
        text = spelled(engine, answer(engine, prompt, SamplingParams(max_tokens=LENGTH)).token_ids)
        middle = len(text) // 2
        part = text[middle : middle + 9]
        for stops in (
            (part, part[:4]),
            (part, part[2:5]),
            (part[:6], part[3:]),
            (part[1:], part),
            (part[:5] + "\0", part[1:7]),
            (part[:8] + "\0", part[:7] + "\0", part[4:6]),
        ):
            _, whole = both_ways(engine, prompt, SamplingParams(max_tokens=LENGTH, stop=stops))
            assert whole.text == text[: first_end(text, stops)]
            assert whole.finish_reason is FinishReason.STOP


def test_a_near_miss_at_max_tokens_is_delivered_whole(engine: Engine) -> None:
    prompt = some_tokens(30, seed=5)
    for length in (1, 2, 3, 9, 10, 17, 39):
        ids = answer(engine, prompt, SamplingParams(max_tokens=length)).token_ids
        text = spelled(engine, ids)
        stops = tuple(text[-held:] + "\0" for held in (1, 2, 7, 30))
        _, whole = both_ways(engine, prompt, SamplingParams(max_tokens=length, stop=stops))
        assert (whole.text, whole.finish_reason) == (text, FinishReason.LENGTH)


def test_a_near_miss_at_the_end_of_the_turn_is_delivered_whole(engine: Engine, tiny_model: MakeTinyModel) -> None:
    prompt = some_tokens(30, seed=9)
    ids = answer(engine, prompt, SamplingParams(max_tokens=60)).token_ids
    for end in (ids[5], ids[22], ids[25]):
        text = spelled(engine, ids[: ids.index(end)])
        model = tiny_model(TinyModel(eos=end))
        with serving(model, draft=str(model), speculation=8, reuse_prefixes=False) as ending:
            for held in (1, 4, 20):
                params = SamplingParams(max_tokens=60, stop=(text[-held:] + "\0",))
                _, whole = both_ways(ending, prompt, params)
                assert (whole.text, whole.finish_reason) == (text, FinishReason.STOP)


def test_text_that_is_a_near_miss_again_and_again_is_delivered_whole(engine: Engine) -> None:
    prompt = some_tokens(30, seed=6)
    ids = answer(engine, prompt, SamplingParams(max_tokens=LENGTH)).token_ids
    text = spelled(engine, ids)
    stops = tuple(f"{character}\0" for character in list(dict.fromkeys(text))[:16])
    _, whole = both_ways(engine, prompt, SamplingParams(max_tokens=LENGTH, stop=stops))
    assert whole.text == text


# --- T2: characters ---

FAMILY = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
"""Three characters that a zero-width joiner makes one picture of."""
CHARACTERS = ("😀🎉🚀 emoji:", "日本語の文章を書いて", f"{FAMILY} {FAMILY} ", "Ελληνικά, кириллица, العربية, हिन्दी")


def assert_whole_characters(pieces: list[Output], engine: Engine) -> None:
    for piece in pieces:
        piece.text.encode()  # raises for half a surrogate pair
        assert REPLACEMENT not in piece.text
    assert text_of(pieces) == spelled(engine, ids_of(pieces))


@pytest.mark.parametrize("prompt", CHARACTERS)
def test_whatever_max_tokens_cuts_no_character_is_broken(engine: Engine, prompt: str) -> None:
    for temperature in (0.0, 2.0):
        before = ""
        for max_tokens in range(1, 11):
            params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=3)
            pieces, whole = both_ways(engine, prompt, params)
            assert_whole_characters(pieces, engine)
            assert whole.text.startswith(before)
            before = whole.text


@pytest.fixture(scope="session")
def byte_tokens(dense: LlamaModel) -> Ids:
    """Tokens that are no whole characters: beginnings, middles and ends of UTF-8 sequences."""
    vocabulary = dense.vocabulary
    return [token for token in range(QUIET_TOKENS, vocabulary.size) if is_broken(vocabulary.piece(token))]


def is_broken(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return True
    return False


def test_noise_of_byte_fragments_shows_only_what_they_spell(engine: Engine, byte_tokens: Ids) -> None:
    assert len(byte_tokens) > 100
    bias = dict.fromkeys(byte_tokens, 60.0)
    shown = 0
    for seed in range(10):
        params = SamplingParams(max_tokens=10 + seed, temperature=2.0, seed=seed, logit_bias=bias)
        pieces, whole = both_ways(engine, some_tokens(10, seed), params)
        assert set(whole.token_ids) <= set(byte_tokens)
        assert_whole_characters(pieces, engine)
        shown += len(whole.text)
    assert shown > 4  # fragments do meet and make characters


def test_a_stop_string_made_of_split_characters_is_found(engine: Engine, byte_tokens: Ids) -> None:
    bias = dict.fromkeys(byte_tokens, 60.0)
    found = 0
    for seed in range(4):
        params = SamplingParams(max_tokens=40, temperature=2.0, seed=seed, logit_bias=bias)
        prompt = some_tokens(10, seed)
        text = answer(engine, prompt, params).text
        for stop in {text[-1:], text[1:3]} - {""}:
            stopping = SamplingParams(max_tokens=40, temperature=2.0, seed=seed, logit_bias=bias, stop=(stop,))
            _, whole = both_ways(engine, prompt, stopping)
            assert whole.text == text[: text.find(stop)]
            assert whole.finish_reason is FinishReason.STOP
            found += 1
    assert found > 3


def test_the_real_model_writes_emoji_whole(smollm2_path: Path) -> None:
    with serving(smollm2_path, speculation=4) as engine:
        prompt = f"😀 😀 😀 😀 {FAMILY} {FAMILY} 日本 日本 日本 😀 😀 😀 😀 {FAMILY} {FAMILY} 日本"
        cuts = 0
        for max_tokens in range(1, 9):
            pieces = streamed(engine, prompt, SamplingParams(max_tokens=max_tokens))
            assert_whole_characters(pieces, engine)
            cuts += is_broken(engine.tokenizer.bytes_of(ids_of(pieces)))
        assert cuts  # max_tokens did cut inside characters


def test_unfinished_characters_are_really_among_the_test_subjects(byte_tokens: Ids, dense: LlamaModel) -> None:
    first_bytes = np.array([dense.vocabulary.piece(token)[0] for token in byte_tokens])
    assert ((first_bytes >= 0x80) & (first_bytes < 0xC0)).any()
    assert (first_bytes >= 0xF0).any()
