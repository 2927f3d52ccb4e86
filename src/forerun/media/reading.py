"""Pictures and recordings for who uses the library."""

from __future__ import annotations

from pathlib import Path

from forerun.errors import InvalidRequestError
from forerun.media.decoding import MediaDecoder
from forerun.media.item import Media
from forerun.media.kind import MediaKind
from forerun.media.limits import MediaLimits
from forerun.media.picture import Picture
from forerun.media.sound import Sound


def read_picture(file: str | Path | bytes, limits: MediaLimits | None = None) -> Picture:
    """A JPEG, PNG, WebP or GIF file, by path or as its bytes, ready to stand in a message:

        {"type": "image", "image": read_picture("cat.jpg")}

    Decoded in a process of its own, in a fraction of a second. Raises InvalidRequestError for what is no picture or
    larger than `limits`.
    """
    found = _read(MediaKind.IMAGE, file, limits or MediaLimits())
    assert isinstance(found, Picture)
    return found


def read_sound(file: str | Path | bytes, limits: MediaLimits | None = None) -> Sound:
    """A WAV, MP3 or FLAC file, by path or as its bytes, ready to stand in a message:

        {"type": "audio", "audio": read_sound("question.wav")}

    Its channels are made one. Decoded as pictures are; raises InvalidRequestError for what is no recording or longer
    than `limits`.
    """
    found = _read(MediaKind.AUDIO, file, limits or MediaLimits())
    assert isinstance(found, Sound)
    return found


def _read(kind: MediaKind, file: str | Path | bytes, limits: MediaLimits) -> Media:
    name = kind.value if isinstance(file, bytes) else str(file)
    data = file if isinstance(file, bytes) else _content(Path(file), limits.max_item_bytes)
    decoder = MediaDecoder(limits, processes=1)
    try:
        return decoder.decode(kind, data, name)
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
