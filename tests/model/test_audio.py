"""Recordings through a real audio encoder, on generated models: what they say is noise, each its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp, mtmd_cpp

from forerun.compose_media import media_kinds
from forerun.compose_process import in_own_process
from forerun.core.request import SamplingParams
from forerun.core.step import MediaRows
from forerun.engine.engine import BlockingEngine
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidRequestError
from forerun.media.kind import MediaKind
from forerun.media.sound import Sound
from forerun.native.encoded import Encoded
from forerun.native.media_batch import MediaBatch
from forerun.native.projector import MediaChunk, Projector
from forerun.native.resampling import resampled
from tests.conftest import MakeTinyModel
from tests.media.sounds import tone
from tests.model.conftest import MakeContext
from tests.model.pictures import Seeing, assert_same_answer, noise, seeing, with_pictures
from tests.model.recordings import HEARS, HEARS_ONLY, hearing
from tests.model.test_media import logits_after
from tests.support.tiny_audio import RATE, TOKENS
from tests.support.tiny_models import TinyModel
from tests.support.tiny_projector import TinyProjector, build_projector

pytestmark = pytest.mark.model

MROPE, PLAIN = TinyModel(kind="qwen2vl"), TinyModel()
QUESTION = " What did you hear in this recording, and how loud was it?"


@pytest.fixture(scope="module", params=[MROPE, PLAIN], ids=["M-RoPE", "plain positions"])
def model_path(tiny_model: MakeTinyModel, request: pytest.FixtureRequest) -> Path:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def shared(model_path: Path) -> Iterator[Seeing]:
    """For tests that use recordings of their own."""
    with hearing(model_path, HEARS_ONLY) as one:
        yield one


def spans_of(seeing: Seeing, *parts: Any) -> list[tuple[int, int]]:
    spans = [segment.media_span for segment in seeing.prompt(*parts).segments]
    return [(span.logical_tokens, span.native_positions) for span in spans if span is not None]


# --- samples ----------------------------------------------------------


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_a_tone_keeps_its_pitch_and_loudness_at_the_projector_s_rate(rate: int) -> None:
    wave = resampled(tone(440, 1.0, rate), RATE)
    assert abs(wave.size - RATE) <= 1
    wanted = np.frombuffer(tone(440, 1.0, RATE).samples, "<i2") / 32_768
    middle = slice(RATE // 10, -RATE // 10)
    np.testing.assert_allclose(wave[: wanted.size][middle], wanted[: wave.size][middle], atol=0.002)


def test_what_the_projector_cannot_hear_is_taken_out_and_does_not_come_back_lower() -> None:
    assert np.abs(resampled(tone(12_000, 1.0, 48_000), RATE)[1_000:-1_000]).max() < 0.001


# --- against llama.cpp's own way ----------------------------------------------------------


def test_a_recording_gives_llama_cpp_s_own_logits(load: Any, make_context: MakeContext) -> None:
    projector = Projector.load(build_projector(HEARS_ONLY), load(MROPE), "p", n_threads=1)
    try:
        (chunk,) = (part for part in projector.place(tone(440, 2.0)) if isinstance(part, MediaChunk))
        assert (chunk.tokens, chunk.positions, chunk.is_causal) == (TOKENS, TOKENS, True)
        embeddings = projector.encode(chunk)
        theirs, ours = make_context(load(MROPE)), make_context(load(MROPE))
        new_position = llama_cpp.llama_pos(0)
        mtmd_cpp.mtmd_helper_decode_image_chunk(
            projector._handle,
            theirs.handle,
            chunk.handle,
            embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            5,
            0,
            256,
            ctypes.byref(new_position),
            mtmd_cpp.mtmd_helper_post_decode_callback(),
            None,
        )
        media = MediaRows(0, None, 5, 0, chunk.tokens)  # type: ignore[arg-type]
        ours.decode(MediaBatch(media, Encoded(embeddings, chunk.geometry, chunk.is_causal), 0, chunk.tokens))
        assert new_position.value == 5 + chunk.positions
        expected, found = (logits_after(context, new_position.value) for context in (theirs, ours))
        np.testing.assert_array_equal(found, expected)
    finally:
        projector.close()


# --- identity and reuse ----------------------------------------------------------


def test_two_turns_over_one_recording_encode_it_once_and_evaluate_new_tokens_alone(shared: Seeing) -> None:
    said: list[Any] = ["Hear: ", tone(440, 3.0), QUESTION]
    before = shared.encoder.encoded
    for turn in range(3):
        output = shared.ask(*said, tokens=6)
        assert output.usage is not None
        assert turn == 0 or output.usage.prompt_tokens - output.usage.cached_tokens < 40
        assert turn == 0 or output.usage.cached_tokens > TOKENS
        assert tuple(output.token_ids) == tuple(shared.ask(*said, tokens=6, cold=True).token_ids)
        said += [output.text, f" And number {turn}, what is it?"]
    assert shared.encoder.encoded == before + 1
    shared.ask("Another conversation: ", tone(440, 3.0), QUESTION)
    assert shared.encoder.encoded == before + 1


def test_case_m1_recordings_of_one_length_never_share_a_cached_token(shared: Seeing) -> None:
    recordings = [tone(pitch, 1.0) for pitch in (500, 501, 1_000, 2_000)]
    before = len(shared.prompt("Listen to this: ").text_tokens)
    answers: list[tuple[int, ...]] = []
    for number in range(2):
        for index, sound in enumerate(recordings):
            output = shared.ask("Listen to this: ", sound, QUESTION)
            assert output.usage is not None
            if number:
                assert output.usage.cached_tokens == output.usage.prompt_tokens - 1, "the same recording hits"
                assert tuple(output.token_ids) == answers[index]
            else:
                assert output.usage.cached_tokens <= before, "no token of another recording does"
                answers.append(tuple(output.token_ids))


def test_samples_at_another_rate_are_another_recording(shared: Seeing) -> None:
    sound = tone(700, 1.0)
    slower = Sound.of(sound.rate // 2, sound.samples)
    shared.ask(sound, QUESTION)
    output = shared.ask(slower, QUESTION)
    assert output.usage is not None
    assert output.usage.cached_tokens <= len(shared.prompt("").text_tokens)


def test_a_long_recording_is_a_span_each_half_minute(shared: Seeing) -> None:
    sound = tone(440, 35.0, 8_000)
    assert spans_of(shared, sound) == [(TOKENS, TOKENS)] * 2
    first = shared.ask("Long: ", sound, QUESTION, tokens=12)
    again = shared.ask("Long: ", sound, QUESTION, tokens=12)
    assert again.usage is not None
    assert again.usage.cached_tokens >= 2 * TOKENS
    assert tuple(first.token_ids) == tuple(shared.ask("Long: ", sound, QUESTION, tokens=12, cold=True).token_ids)


def test_recordings_and_pictures_keep_their_order_and_places(tiny_model: MakeTinyModel) -> None:
    picture, sound = noise(3, 84, 84), tone(300)
    with hearing(tiny_model(MROPE)) as both:
        assert both.engine.media_kinds == {MediaKind.IMAGE, MediaKind.AUDIO}
        assert spans_of(both, "a", picture, "b", sound) == [(9, 3), (TOKENS, TOKENS)]
        assert spans_of(both, "a", sound, picture) == [(TOKENS, TOKENS), (9, 3)]
        one_way, other_way = both.ask("a", sound, "b", picture, QUESTION), both.ask("a", picture, "b", sound, QUESTION)
        assert tuple(one_way.token_ids) != tuple(other_way.token_ids)


def test_encoded_recordings_outlive_the_engine(model_path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_ram": 2**20, "cache_dir": str(tmp_path / "cache")}
    with hearing(model_path, **options) as one:
        first = one.ask("Before: ", tone(600), QUESTION)
    with hearing(model_path, **options) as one:
        assert one.ask("After, and elsewhere: ", tone(600), QUESTION).error is None
        assert tuple(one.ask("Before: ", tone(600), QUESTION).token_ids) == tuple(first.token_ids)
        assert one.encoder.encoded == 0


# --- steps, drafts, faults ----------------------------------------------------------


def test_small_steps_change_nothing(model_path: Path, shared: Seeing) -> None:
    with hearing(model_path, HEARS_ONLY, max_num_batched_tokens=8) as one:
        found = one.ask("In parts: ", tone(800), QUESTION, tokens=24, logprobs=2)
    assert_same_answer(found, shared.ask("In parts: ", tone(800), QUESTION, tokens=24, logprobs=2))


def test_drafts_behind_a_recording_change_nothing(model_path: Path, shared: Seeing) -> None:
    said: list[Any] = ["Hear: ", tone(900), " the cat sat on the mat, the cat sat on the mat, the cat sat"]
    plain = shared.ask(*said, tokens=100)
    with hearing(model_path, HEARS_ONLY, speculation=4) as one:
        drafted = one.ask(*said, tokens=100)
        assert tuple(drafted.token_ids) == tuple(plain.token_ids)
        assert drafted.usage is not None
        assert drafted.usage.drafted_tokens > 0
        more = (*said, drafted.text, " And then?")
        assert tuple(one.ask(*more).token_ids) == tuple(one.ask(*more, cold=True).token_ids)


def test_a_draft_model_drafts_behind_a_recording_and_the_answer_is_the_same(model_path: Path, shared: Seeing) -> None:
    said: list[Any] = ["Hear: ", tone(950), QUESTION]
    with hearing(model_path, HEARS_ONLY, draft=str(model_path), speculation=4) as one:
        drafted = one.ask(*said, tokens=60)
    assert tuple(drafted.token_ids) == tuple(shared.ask(*said, tokens=60).token_ids)
    assert drafted.usage is not None
    assert drafted.usage.drafters["draft"][0] > 20


def test_what_a_model_hears_and_sees_is_told_from_its_projector_s_header() -> None:
    wanted = {
        HEARS: {MediaKind.IMAGE, MediaKind.AUDIO},
        HEARS_ONLY: {MediaKind.AUDIO},
        TinyProjector(): {MediaKind.IMAGE},
    }
    for recipe, kinds in wanted.items():
        assert media_kinds(EngineConfig(model="x", projector=str(build_projector(recipe)))) == kinds


def test_what_a_projector_does_not_take_is_refused_by_its_place(shared: Seeing) -> None:
    with pytest.raises(InvalidRequestError, match=r"media\[0\]: is an image, and .* reads recordings alone"):
        shared.prompt("See: ", noise(1))


def test_a_projector_that_only_sees_is_never_given_a_recording(tiny_model: MakeTinyModel) -> None:
    with seeing(tiny_model(MROPE)) as one:
        projector = one.encoder._projector
        with pytest.raises(InvalidRequestError, match="is a recording, and this model's projector reads images alone"):
            projector.place(tone())


def test_an_engine_process_is_given_samples_when_it_needs_them(model_path: Path, shared: Seeing) -> None:
    config = EngineConfig(
        model=str(model_path),
        projector=str(build_projector(HEARS_ONLY)),
        n_ctx=1024,
        n_threads=1,
        cache_ram=0,
        media_cache=0,
    )
    text, sounds = with_pictures("Far away: ", tone(1_100), QUESTION)
    expected = tuple(shared.ask("Far away: ", tone(1_100), QUESTION).token_ids)
    with BlockingEngine(in_own_process(config)) as engine:
        assert engine.media_kinds == {MediaKind.AUDIO}
        layout = engine.prompt(text, media=sounds)
        for number in range(9):  # what was prepared while measuring is pushed out
            other, others = with_pictures(tone(1_200 + number))
            engine.prompt(other, media=others)
        (output,) = engine.generate(layout, SamplingParams(max_tokens=8, ignore_eos=True))
        assert tuple(output.token_ids) == expected
