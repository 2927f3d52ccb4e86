"""A recording at the rate that a projector was trained with."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forerun.media.sound import Sound

RESAMPLER: Final = f"soxr {version('soxr')} HQ"
"""Names what is done to samples: others make other embeddings."""
_LOUDEST: Final = 32_768


def resampled(sound: Sound, rate: int) -> NDArray[np.float32]:
    """Samples between -1 and 1, `rate` of them a second."""
    import soxr  # most engines hear nothing

    wave = np.frombuffer(sound.samples, "<i2").astype(np.float32) / np.float32(_LOUDEST)
    found: NDArray[np.float32] = soxr.resample(wave, sound.rate, rate, quality="HQ")
    return np.ascontiguousarray(found, np.float32)
