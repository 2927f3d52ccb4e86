"""`forerun run --image --audio`: what is shown comes before the prompt, what cannot be is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.chat.prompts import PromptWriter
from forerun.chat.templates import ChatTemplate
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import SamplingParams
from forerun.media.kind import MediaKind
from forerun.media.picture import Picture
from forerun.media.reading import read_picture
from forerun.testing import FakeMediaReader, naive_answer
from forerun.testing.media import SPAN_EMBEDDINGS
from tests.cli.conftest import FakeBuild, Forerun
from tests.engine.support import SpellingVocabulary, tokens_of
from tests.media.pictures import BLUE, RED, Colour, plain
from tests.media.sounds import recording, tone

TEN = ("--max-tokens", "10", "--ignore-eos", "--temperature", "0")
PARAMS = SamplingParams(max_tokens=10, ignore_eos=True)
TEMPLATE = "{% for message in messages %}{{ message.content }}${% endfor %}"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    names = []
    for name, colour in (("red.png", RED), ("blue.png", BLUE)):
        (tmp_path / name).write_bytes(plain(colour))
        names.append(str(tmp_path / name))
    return names


def span(colour: Colour) -> PromptSegment:
    return PromptSegment.media(f"fake:{Picture.of(56, 28, bytes(colour) * 56 * 28).digest}", 2, 2)


def test_images_are_shown_before_each_prompt(forerun: Forerun, fake_build: FakeBuild, files: list[str]) -> None:
    fake_build.media, fake_build.template = FakeMediaReader(), PromptWriter(ChatTemplate(TEMPLATE, "", ""))
    shown = ("--image", files[0], "--image", files[1])
    result = forerun("run", "fake", "ab", "b", *shown, *TEN)
    assert result.exit_code == 0, result.stderr
    layouts = [PromptLayout([span(RED), span(BLUE), PromptSegment.text(tokens_of(text))]) for text in ("ab$", "b$")]
    answers = [naive_answer(layout, PARAMS, SpellingVocabulary(), 256).text for layout in layouts]
    assert result.stdout.splitlines() == answers


def test_recordings_are_played_behind_the_images(
    forerun: Forerun, fake_build: FakeBuild, files: list[str], tmp_path: Path
) -> None:
    kinds = (MediaKind.IMAGE, MediaKind.AUDIO)
    fake_build.media, fake_build.template = FakeMediaReader(kinds=kinds), PromptWriter(ChatTemplate(TEMPLATE, "", ""))
    (tmp_path / "a.wav").write_bytes(recording(440))
    result = forerun("run", "fake", "ab", "--audio", str(tmp_path / "a.wav"), "--image", files[0], *TEN)
    assert result.exit_code == 0, result.stderr
    heard = PromptSegment.media(f"fake:{tone(440).digest}:0", SPAN_EMBEDDINGS, SPAN_EMBEDDINGS)
    layout = PromptLayout([span(RED), heard, PromptSegment.text(tokens_of("ab$"))])
    assert result.stdout.splitlines() == [naive_answer(layout, PARAMS, SpellingVocabulary(), 256).text]
    fake_build.media = FakeMediaReader()
    refused = forerun("run", "fake", "ab", "--audio", str(tmp_path / "a.wav"))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "audio: is a recording, and this model's projector reads images alone" in refused.stderr


def test_what_cannot_be_shown_is_told_in_one_line(
    forerun: Forerun, fake_build: FakeBuild, files: list[str], tmp_path: Path
) -> None:
    refused = forerun("run", "fake", "ab", "--image", files[0])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "image: is an image, and this model reads text alone" in refused.stderr
    (tmp_path / "text.png").write_text("text")
    for name, said in (
        (str(tmp_path / "text.png"), "is no picture"),
        (str(tmp_path / "none.png"), "cannot be read: No"),
    ):
        refused = forerun("run", "fake", "ab", "--image", name)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{name}: {said}" in refused.stderr.replace("\n", "")
    assert fake_build.configs == fake_build.configs[:1]  # what is no picture is told before a model is loaded
    for option in ("--image", "--audio"):
        assert forerun("run", "fake", "ab", "--raw", option, files[0]).exit_code == 2


def test_a_picture_is_read_from_bytes_as_from_its_file(files: list[str]) -> None:
    assert read_picture(Path(files[0]).read_bytes()) == read_picture(files[0])
