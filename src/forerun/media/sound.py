"""A recording as the engine takes it: decoded, checked, named by content."""

from __future__ import annotations

import hashlib
from typing import ClassVar, Final, Self

import msgspec

from forerun.media.kind import MediaKind

MIN_SECONDS: Final = 0.1
"""Of a recording: a model hears nothing in less, and some encoders count on more."""
RATES: Final = range(4_000, 48_001)
"""Samples a second: from less than a telephone's to all that can be heard."""
_SAMPLE_BYTES: Final = 2
_DIGEST_OF: Final = b"forerun sound 1"


class Sound(msgspec.Struct, frozen=True, eq=False, weakref=True, tag="audio"):
    """A recording, its channels made one, at the rate of its file."""

    rate: int
    """Samples a second."""
    samples: bytes
    """Signed numbers of 16 bits, little endian."""
    digest: str
    """SHA-256 of rate and samples, in hexadecimal: equal ones sound the same, whatever file they came from."""

    kind: ClassVar[MediaKind] = MediaKind.AUDIO

    @classmethod
    def of(cls, rate: int, samples: bytes) -> Self:
        """Raises ValueError for a rate outside RATES, and for half a sample or less than MIN_SECONDS of them."""
        if rate not in RATES:
            raise ValueError(f"a sound has {RATES.start} to {RATES.stop - 1} samples a second, got {rate}")
        if len(samples) % _SAMPLE_BYTES or len(samples) < MIN_SECONDS * rate * _SAMPLE_BYTES:
            raise ValueError(f"a sound has {MIN_SECONDS:g} s of samples of {_SAMPLE_BYTES} bytes, got {len(samples)}")
        digest = hashlib.sha256(_DIGEST_OF + f" {rate} ".encode())
        digest.update(samples)
        return cls(rate, samples, digest.hexdigest())

    @property
    def seconds(self) -> float:
        return len(self.samples) / _SAMPLE_BYTES / self.rate

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return len(self.samples)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sound):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Sound(rate={self.rate}, seconds={self.seconds:g}, digest={self.digest!r})"
