"""A picture as the engine takes it: decoded, checked, named by content."""

from __future__ import annotations

import hashlib
from typing import ClassVar, Final, Self

import msgspec

from forerun.media.kind import MediaKind

_CHANNELS: Final = 3
_DIGEST_OF: Final = b"forerun picture 1"


class Picture(msgspec.Struct, frozen=True, eq=False, weakref=True, tag="image"):
    """An upright picture: rotated as its file says, the first frame of an animation, what is transparent on white."""

    width: int
    height: int
    rgb: bytes
    """A byte for red, green and blue of each pixel, row by row from the top."""
    digest: str
    """SHA-256 of size and pixels, in hexadecimal: equal ones look the same, whatever file they came from."""

    kind: ClassVar[MediaKind] = MediaKind.IMAGE

    @classmethod
    def of(cls, width: int, height: int, rgb: bytes) -> Self:
        """Raises ValueError where the pixels are not as many as the size says."""
        if width < 1 or height < 1 or len(rgb) != width * height * _CHANNELS:
            raise ValueError(f"{width} x {height} pixels have {width * height * _CHANNELS} bytes, got {len(rgb)}")
        digest = hashlib.sha256(_DIGEST_OF + f" {width} {height} ".encode())
        digest.update(rgb)
        return cls(width, height, rgb, digest.hexdigest())

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return len(self.rgb)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Picture):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Picture(width={self.width}, height={self.height}, digest={self.digest!r})"
