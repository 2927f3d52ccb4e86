"""A picture for who uses the library."""

from __future__ import annotations

from pathlib import Path

from forerun.errors import InvalidRequestError
from forerun.media.decoding import PictureDecoder
from forerun.media.limits import MediaLimits
from forerun.media.picture import Picture


def read_picture(file: str | Path | bytes, limits: MediaLimits | None = None) -> Picture:
    """A JPEG, PNG, WebP or GIF file, by path or as its bytes, ready to stand in a message:

        {"type": "image", "image": read_picture("cat.jpg")}

    Decoded in a process of its own, in a fraction of a second. Raises InvalidRequestError for what is no picture or
    larger than `limits`.
    """
    allowed = limits or MediaLimits()
    name = "image" if isinstance(file, bytes) else str(file)
    data = file if isinstance(file, bytes) else _content(Path(file), allowed.max_item_bytes)
    decoder = PictureDecoder(allowed, processes=1)
    try:
        return decoder.decode(data, name)
    finally:
        decoder.close()


def _content(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise InvalidRequestError(str(path), f"cannot be read: {error.strerror or error}") from None
    if len(data) > max_bytes:
        raise InvalidRequestError(str(path), f"has more than {max_bytes} bytes, which is what is read at most")
    return data
