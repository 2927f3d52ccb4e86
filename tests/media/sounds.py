"""Files of recordings, made here."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from forerun.media.sound import Sound

RATE = 16_000
_LOUD = 0.5


def wave(pitch: float, seconds: float = 0.5, rate: int = RATE) -> NDArray[np.float32]:
    """One tone, half as loud as can be."""
    times = np.arange(round(seconds * rate)) / rate
    return (_LOUD * np.sin(2 * np.pi * pitch * times)).astype(np.float32)


def encoded(samples: NDArray[Any], form: str = "WAV", rate: int = RATE, subtype: str | None = None) -> bytes:
    """A file of samples, of shape (samples,) or (samples, channels)."""
    file = BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def tone(pitch: float = 440, seconds: float = 0.5, rate: int = RATE) -> Sound:
    """What `recording` is decoded to, where its form keeps every sample."""
    return Sound.of(rate, _whole(pitch, seconds, rate).tobytes())


def recording(pitch: float = 440, seconds: float = 0.5, form: str = "WAV", rate: int = RATE) -> bytes:
    """A file of one tone."""
    return encoded(_whole(pitch, seconds, rate), form, rate)


def _whole(pitch: float, seconds: float, rate: int) -> NDArray[np.int16]:
    return np.rint(wave(pitch, seconds, rate) * 32_768).astype("<i2")
