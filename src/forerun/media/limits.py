"""How much media a request may bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forerun.errors import InvalidConfigError

_MOST_PIXELS: Final = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Raises InvalidConfigError, naming the field, for values that make no sense."""

    max_items: int = 64
    """Of one request."""
    max_item_bytes: int = 20 * 2**20
    """Of one encoded file."""
    max_image_pixels: int = 2**24
    """Of one picture: 16.8 million, 50 MB once decoded."""
    max_pixels: int = 2**26
    """Of all pictures of one request."""
    max_aspect: float = 200.0
    """The longer side as a multiple of the shorter one; projectors are not made for more."""
    max_audio_seconds: float = 600.0
    """Of one recording: 58 MB once decoded, where it has 48,000 samples a second."""
    max_seconds: float = 1800.0
    """Of all recordings of one request."""
    decode_seconds: float = 10.0
    """That decoding one item may take."""
    fetch_seconds: float = 10.0
    """From asking for an address to the last byte, redirects included."""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidConfigError(name, f"must lie between {low:g} and {high:g}, got {value:g}")
        if self.max_pixels < self.max_image_pixels:
            said = (
                f"is less than max_image_pixels: {self.max_pixels} pixels a request, {self.max_image_pixels} a picture"
            )
            raise InvalidConfigError("max_pixels", said)
        if self.max_seconds < self.max_audio_seconds:
            said = (
                f"is less than max_audio_seconds: {self.max_seconds:g} s a request, {self.max_audio_seconds:g} s each"
            )
            raise InvalidConfigError("max_seconds", said)


_RANGES: Final = (
    ("max_items", 1, 10_000),
    ("max_item_bytes", 1, 2**31),
    ("max_image_pixels", 1, _MOST_PIXELS),
    ("max_pixels", 1, 64 * _MOST_PIXELS),
    ("max_aspect", 1.0, 65_536.0),
    ("max_audio_seconds", 0.1, 2_400.0),
    ("max_seconds", 0.1, 86_400.0),
    ("decode_seconds", 0.001, 600.0),
    ("fetch_seconds", 0.001, 600.0),
)
