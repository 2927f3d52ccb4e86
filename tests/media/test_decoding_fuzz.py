"""Damaged files: whatever becomes of one, it is a picture of bounded size or a refusal by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from forerun.errors import InvalidRequestError
from forerun.media.decoding import MediaDecoder
from forerun.media.limits import MediaLimits
from tests.media.pictures import BLUE, RED, animation, encoded, plain, quarters

LIMITS = MediaLimits(max_image_pixels=2**18, max_pixels=2**18)
EXIF = Image.Exif()
EXIF[0x0112] = 6
FILES = [
    encoded(quarters(), "JPEG", exif=EXIF),
    encoded(quarters(64), "JPEG", progressive=True),
    encoded(quarters(), "PNG", exif=EXIF),
    encoded(quarters(), "WEBP", exif=EXIF),
    animation([RED, BLUE], "GIF"),
    animation([RED, BLUE], "WEBP"),
    animation([RED, BLUE], "PNG"),
    plain((1, 2, 3, 4)),
]


@pytest.fixture(scope="module")
def decoder() -> Iterator[MediaDecoder]:
    one = MediaDecoder(LIMITS, processes=1)
    yield one
    one.close()


@st.composite
def damaged(draw: st.DrawFn, files: Sequence[bytes]) -> bytes:
    """A file of which some bytes were changed, or that was cut, or of which a piece is there twice or not at all."""
    data = bytearray(draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["set", "cut", "twice", "drop"])):
            case "set":
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[max(at, 1) :]
            case "twice":
                data[at:at] = data[at : at + draw(st.integers(1, 64))]
            case _:
                del data[at : at + draw(st.integers(1, 8))]
        if not data:
            data += b"\0"
    return bytes(data)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=damaged(FILES))
def test_a_damaged_file_is_a_picture_or_a_refusal(decoder: MediaDecoder, data: bytes) -> None:
    try:
        picture = decoder.picture(data, "it")
    except InvalidRequestError as error:
        said = str(error)
    else:
        said = "it: is a picture"
        assert 0 < picture.width * picture.height <= LIMITS.max_image_pixels
        assert len(picture.rgb) == 3 * picture.width * picture.height
    assert said.startswith("it: ")
    assert len(said) < 400
