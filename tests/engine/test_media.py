"""Prompts with pictures in them: read where they stand, answered as the same prompt is anywhere, refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forerun import Engine, InvalidRequestError, PromptLayout, PromptSegment, SamplingParams
from forerun.core.prompt import Tokens, as_tokens
from forerun.core.prompt_text import PromptText
from forerun.engine.parts import Message
from forerun.engine.tokenizer import Tokenizer
from forerun.media.kind import MediaKind
from forerun.media.picture import Picture
from forerun.testing import FakeMediaReader, naive_answer
from tests.engine.support import SpellingVocabulary, fake_engine, fake_parts, tokens_of
from tests.media.sounds import tone

RED = Picture.of(56, 28, b"\xff\0\0" * (56 * 28))
BLUE = Picture.of(56, 28, b"\0\0\xff" * (56 * 28))
TEN = SamplingParams(max_tokens=10, ignore_eos=True, seed=7)


def span(picture: Picture) -> PromptSegment:
    return PromptSegment.media(f"fake:{picture.digest}", 2, 2)


def seeing(reader: FakeMediaReader | None = None) -> Engine:
    return Engine(replace(fake_parts(), media=reader or FakeMediaReader()))


def test_pictures_stand_where_the_text_says_and_are_answered_as_their_layout_is() -> None:
    with seeing() as engine:
        assert engine.media_kinds == {MediaKind.IMAGE}
        layout = engine.prompt(PromptText("abba", media=((2, 1), (4, 0))), media=[RED, BLUE])
        assert layout == PromptLayout(
            [PromptSegment.text(tokens_of("ab")), span(BLUE), PromptSegment.text(tokens_of("ba")), span(RED)]
        )
        (output,) = engine.generate(layout, TEN)
    assert output.text == naive_answer(layout, TEN, SpellingVocabulary(), 256).text


def test_what_a_projector_wants_around_a_picture_comes_around_it() -> None:
    with seeing(FakeMediaReader(around=([1], [0, 0]))) as engine:
        layout = engine.prompt(PromptText("a", media=((0, 0),)), media=[RED])
    assert layout == PromptLayout([PromptSegment.text([1]), span(RED), PromptSegment.text([0, 0, *tokens_of("a")])])


class PictureTemplate:
    """Shows one picture, and says "a" of it."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> PromptText:
        del messages, add_generation_prompt
        return PromptText("a", media=((0, 0),))


class StartingVocabulary(SpellingVocabulary):
    """Begins each prompt with a token of its own."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        tokens = super().tokenize(text, add_special=add_special, parse_special=parse_special)
        return as_tokens([4, *tokens] if add_special else tokens)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_the_model_wants_before_a_prompt_comes_once_and_first(at: int) -> None:
    vocabulary = StartingVocabulary()
    assert Tokenizer(vocabulary).tokenize("").tolist() == [4]
    with Engine(replace(fake_parts(), vocabulary=vocabulary, media=FakeMediaReader())) as engine:
        layout = engine.prompt(PromptText("ab", media=((at, 0),)), media=[RED])
    assert layout.text_tokens.tolist() == [4, *tokens_of("ab")]
    assert layout.media_at(1 + at) == span(RED)


def test_a_picture_is_refused_by_name_where_the_projector_refuses_it_and_where_there_is_none() -> None:
    text = PromptText("a", media=((0, 1),))
    with seeing(FakeMediaReader(most=1)) as engine, pytest.raises(InvalidRequestError, match=r"^media\[1\]: has 2 emb"):
        engine.prompt(text, media=[RED, BLUE])
    with fake_engine() as engine:
        assert engine.media_kinds == frozenset()
        with pytest.raises(InvalidRequestError, match=r"^media\[1\]: this model reads text alone.*--mmproj"):
            engine.prompt(text, media=[RED, BLUE])


def test_a_conversation_shows_its_pictures() -> None:
    messages = [{"role": "user", "content": [{"type": "image", "image": RED}]}]
    with Engine(replace(fake_parts(template=PictureTemplate()), media=FakeMediaReader())) as engine:
        assert engine.chat_prompt(messages) == PromptLayout([span(RED), PromptSegment.text(tokens_of("a"))])
        wrong = [{"role": "user", "content": [{"type": "image", "image": "data:"}]}]
        with pytest.raises(InvalidRequestError, match=r"media\[0\]: is a Picture or a Sound, got str"):
            engine.chat_prompt(wrong)


def test_a_long_recording_is_spans_of_its_own_and_a_model_that_only_sees_refuses_it() -> None:
    text, sound = PromptText("ab", media=((1, 0),)), tone(seconds=31)
    with seeing(FakeMediaReader(kinds=[MediaKind.AUDIO])) as engine:
        layout = engine.prompt(text, media=[sound])
        spans = [segment.media_span for segment in layout.segments if segment.media_span is not None]
        assert [one.identity for one in spans] == [f"fake:{sound.digest}:{index}" for index in range(2)]
        assert all(layout.media[one.identity] is sound for one in spans)
        with pytest.raises(InvalidRequestError, match=r"^media\[0\]: is an image, .* reads recordings alone"):
            engine.prompt(text, media=[RED])
    with seeing() as engine, pytest.raises(InvalidRequestError, match=r"^media\[0\]: is a recording, .* images alone"):
        engine.prompt(text, media=[sound])


def test_pictures_are_equal_where_size_and_pixels_are() -> None:
    assert Picture.of(56, 28, b"\xff\0\0" * (56 * 28)) == RED
    turned = Picture.of(28, 56, RED.rgb)
    assert len({RED.digest, BLUE.digest, turned.digest}) == 3
    assert turned != RED
    with pytest.raises(ValueError, match="2 x 1 pixels have 6 bytes, got 5"):
        Picture.of(2, 1, b"12345")
