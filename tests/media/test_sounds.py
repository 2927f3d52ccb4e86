"""What recordings become, and what becomes of those that are none, too long, or made to hurt."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings

from forerun.errors import InvalidConfigError, InvalidRequestError
from forerun.media.decoding import MediaDecoder
from forerun.media.limits import MediaLimits
from forerun.media.reading import read_sound
from forerun.media.sound import Sound
from tests.media.pictures import plain
from tests.media.sounds import RATE, encoded, recording, tone, wave
from tests.media.test_decoding_fuzz import damaged

LIMITS = MediaLimits(max_audio_seconds=4.0, max_image_pixels=2**20, max_pixels=2**20)
NOISE = random.Random(5).randbytes(5_000)


@pytest.fixture(scope="module")
def decoder() -> Iterator[MediaDecoder]:
    one = MediaDecoder(LIMITS, processes=1)
    yield one
    one.close()


def samples(sound: Sound) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.frombuffer(sound.samples, "<i2")


@pytest.mark.parametrize("form", ["WAV", "WAVEX", "FLAC", "MP3"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_a_recording_is_its_samples_whatever_file_they_come_from(decoder: MediaDecoder, form: str, rate: int) -> None:
    sound = decoder.sound(recording(form=form, rate=rate), "it")
    assert (sound.rate, sound.seconds) == (rate, 0.5)
    if form != "MP3":
        assert sound == tone(rate=rate)
    else:
        heard = np.abs(np.fft.rfft(samples(sound)))
        assert heard.argmax() * 2 == 440


@pytest.mark.parametrize("subtype", ["PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "PCM_U8"])
def test_samples_of_other_sizes_sound_the_same(decoder: MediaDecoder, subtype: str) -> None:
    sound = decoder.sound(encoded(wave(440), subtype=subtype), "it")
    coarse = 600 if subtype in ("ULAW", "ALAW", "PCM_U8") else 1
    assert np.abs(samples(sound).astype(int) - samples(tone()).astype(int)).max() <= coarse


def test_channels_are_made_one(decoder: MediaDecoder) -> None:
    left, right = wave(440), wave(880)
    both = decoder.sound(encoded(np.stack([left, right], 1), subtype="FLOAT"), "it")
    assert both == decoder.sound(encoded((left + right) / 2, subtype="FLOAT"), "it")


def test_what_is_no_number_is_silence_and_what_is_too_loud_as_loud_as_can_be(decoder: MediaDecoder) -> None:
    strange = np.full(RATE, 0.25, np.float32)
    strange[:4] = np.nan, np.inf, -np.inf, 17.0
    sound = decoder.sound(encoded(strange, subtype="FLOAT"), "it")
    assert samples(sound)[:5].tolist() == [0, 32_767, -32_768, 32_767, 8_192]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "is empty", id="zero bytes"),
        pytest.param(NOISE, "is no recording that is read here: WAV, MP3 and FLAC", id="random bytes"),
        pytest.param(b"RIFF\xff\xff\0\0WAVEfmt " + NOISE, "is damaged", id="a WAV's first bytes, then random ones"),
        pytest.param(b"fLaC" + NOISE, "is damaged", id="a FLAC's"),
        pytest.param(b"\xff\xfb" + b"\0" * 5_000, "is damaged", id="an MP3's"),
        pytest.param(recording()[:30], "is damaged", id="a WAV without samples"),
        pytest.param(recording(form="OGG"), "is no recording that is read here", id="Ogg"),
        pytest.param(plain(), "is no recording that is read here", id="a picture"),
        pytest.param(recording(seconds=0.05), r"lasts 0\.05 s, at least 0\.1 s are heard", id="too short"),
        pytest.param(recording(seconds=4.1), r"lasts 4\.1 s, at most 4 s are decoded", id="too long"),
        pytest.param(recording(rate=3_999), "has 3999 samples a second, 4000 to 48000 are read", id="too slow"),
        pytest.param(recording(rate=96_000), "has 96000 samples a second, 4000 to 48000 are read", id="too fast"),
    ],
)
def test_what_cannot_be_heard_is_refused_and_the_next_recording_is(
    decoder: MediaDecoder, data: bytes, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^parts\[3\]: {said}"):
        decoder.sound(data, "parts[3]")
    assert decoder.sound(recording(), "it") == tone()
    assert decoder.picture(plain(), "it").width == 56


def test_a_small_file_of_a_long_silence_is_refused_by_its_length(decoder: MediaDecoder) -> None:
    bomb = encoded(np.zeros(600 * RATE, np.float32), "FLAC")
    assert len(bomb) < 2**15
    with pytest.raises(InvalidRequestError, match="lasts 600 s, at most 4 s are decoded"):
        decoder.sound(bomb, "it")


def test_a_header_that_promises_too_little_does_not_let_more_through(decoder: MediaDecoder) -> None:
    long = bytearray(recording(seconds=8, form="FLAC"))
    start = 8 + 10  # behind "fLaC" and the block's header: 10 bytes, then rate (20), channels (3), bits (5), count (36)
    kept = int.from_bytes(long[start : start + 8], "big") & ~(2**36 - 1)
    long[start : start + 8] = struct.pack(">Q", kept | RATE)
    assert decoder.sound(bytes(long), "it").seconds <= LIMITS.max_audio_seconds


def test_the_longest_recording_that_is_allowed_fits_the_memory_that_is_given() -> None:
    longest = MediaLimits()
    sound = read_sound(encoded(np.zeros(600 * 16_000, np.float32), "FLAC"), longest)
    assert sound.seconds == longest.max_audio_seconds


FILES = [recording(form=form, seconds=0.2) for form in ("WAV", "WAVEX", "FLAC", "MP3")]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=damaged(FILES))
def test_a_damaged_file_is_a_recording_or_a_refusal(decoder: MediaDecoder, data: bytes) -> None:
    try:
        sound = decoder.sound(data, "it")
    except InvalidRequestError as error:
        said = str(error)
    else:
        said = "it: is a recording"
        assert sound.seconds <= LIMITS.max_audio_seconds
    assert said.startswith("it: ")
    assert len(said) < 400


def test_sounds_are_equal_where_rate_and_samples_are() -> None:
    one, slower = tone(), Sound.of(RATE // 2, tone().samples)
    assert tone() == one
    assert hash(tone()) == hash(one)
    assert len({one.digest, slower.digest, tone(441).digest, tone(seconds=0.6).digest}) == 4
    assert slower != one
    assert slower.seconds == 1.0
    for rate, data in ((RATE, b"123"), (RATE, b"12" * (RATE // 10 - 1)), (3_999, one.samples), (48_001, one.samples)):
        with pytest.raises(ValueError, match="a sound has"):
            Sound.of(rate, data)


def test_seconds_of_a_request_cannot_be_fewer_than_of_a_recording() -> None:
    with pytest.raises(InvalidConfigError, match="max_seconds"):
        MediaLimits(max_audio_seconds=10, max_seconds=9)
