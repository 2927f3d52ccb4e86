"""What pictures become, and what becomes of those that are none, too large, or made to hurt: cases M6 and E4."""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from PIL import Image

from forerun.errors import InvalidRequestError
from forerun.media.decoding import SCRIPT, MediaDecoder
from forerun.media.limits import MediaLimits
from forerun.media.picture import Picture
from tests.media.pictures import BLUE, GREEN, RED, animation, encoded, huge_png, plain, quarters

WHITE = (255, 255, 255)


@pytest.fixture(scope="module")
def decoder() -> Iterator[MediaDecoder]:
    with_one = MediaDecoder(MediaLimits(), processes=1)
    yield with_one
    with_one.close()


def pixel(picture: Picture, x: int, y: int) -> tuple[int, ...]:
    start = 3 * (y * picture.width + x)
    return tuple(picture.rgb[start : start + 3])


def corners(picture: Picture) -> list[tuple[int, ...]]:
    """Of the quarters: above left and right, below left and right."""
    near, far = 2, picture.width - 3
    return [pixel(picture, x, y) for y in (near, far) for x in (near, far)]


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "JPEG"])
def test_a_picture_is_its_pixels_in_every_form(decoder: MediaDecoder, form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {"quality": 100, "subsampling": 0} if form == "JPEG" else {}
    picture = decoder.picture(encoded(quarters(), form, **options), "it")
    assert (picture.width, picture.height) == (16, 16)
    wanted = [RED, GREEN, BLUE, WHITE]
    for found, colour in zip(corners(picture), wanted, strict=True):
        assert all(abs(one - other) <= 4 for one, other in zip(found, colour, strict=True))
    if form != "JPEG":
        assert picture == decoder.picture(encoded(quarters(), "PNG"), "it")


@pytest.mark.parametrize(("orientation", "wanted"), [(1, [0, 1, 2, 3]), (3, [3, 2, 1, 0]), (6, [2, 0, 3, 1])])
def test_a_picture_is_turned_as_its_file_says(decoder: MediaDecoder, orientation: int, wanted: list[int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = decoder.picture(encoded(quarters(), "PNG", exif=exif), "it")
    colours = [RED, GREEN, BLUE, WHITE]
    assert corners(picture) == [colours[index] for index in wanted]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(decoder: MediaDecoder, form: str) -> None:
    picture = decoder.picture(animation([RED, BLUE, GREEN], form), "it")
    assert pixel(picture, 5, 5) == RED


def test_what_is_transparent_is_white(decoder: MediaDecoder) -> None:
    half = Image.new("RGBA", (4, 1), (255, 0, 0, 0))
    half.putpixel((1, 0), (255, 0, 0, 255))
    half.putpixel((2, 0), (0, 0, 0, 128))
    picture = decoder.picture(encoded(half), "it")
    assert [pixel(picture, x, 0) for x in range(3)] == [WHITE, RED, (127, 127, 127)]
    listed = Image.new("P", (2, 1), 1)
    listed.putpalette([255, 0, 0, 0, 0, 255])
    listed.putpixel((0, 0), 0)
    assert pixel(decoder.picture(encoded(listed, transparency=0), "it"), 0, 0) == WHITE


@pytest.mark.parametrize(("mode", "value", "wanted"), [("L", 77, 77), ("1", 1, 255), ("I;16", 0x4D00, 0x4D)])
def test_grey_pictures_keep_their_shade(decoder: MediaDecoder, mode: str, value: int, wanted: int) -> None:
    grey = Image.new(mode, (3, 3), value)
    assert pixel(decoder.picture(encoded(grey), "it"), 1, 1) == (wanted,) * 3


def test_printers_colours_become_screens_ones(decoder: MediaDecoder) -> None:
    ink = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, blue = pixel(decoder.picture(encoded(ink, "JPEG"), "it"), 4, 4)
    assert red > 200
    assert max(green, blue) < 60


JPEG = encoded(Image.effect_noise((200, 100), 50), "JPEG")
NOISE = random.Random(5).randbytes(5_000)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(JPEG[: len(JPEG) // 2], "is damaged: image file is truncated", id="truncated JPEG"),
        pytest.param(plain(size=(300, 300))[:60], "is damaged|is no picture", id="truncated PNG"),
        pytest.param(NOISE, "is no picture: JPEG, PNG, WebP and GIF", id="random bytes"),
        pytest.param(
            b"\x89PNG\r\n\x1a\n" + NOISE, "is damaged|is no picture", id="a PNG's first bytes, then random ones"
        ),
        pytest.param(b"\xff\xd8\xff" + NOISE, "is damaged|is no picture", id="a JPEG's first bytes, then random ones"),
        pytest.param(b"RIFF\xff\xff\0\0WEBPVP8 " + NOISE, "is damaged|is no picture", id="a WebP's"),
        pytest.param(b"", "is empty", id="zero bytes"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no picture", id="SVG"),
        pytest.param(encoded(Image.new("RGB", (4, 4)), "TIFF"), "is no picture", id="TIFF"),
        pytest.param(encoded(Image.new("RGB", (4, 4)), "PDF"), "is no picture", id="PDF"),
    ],
)
def test_case_m6_what_cannot_be_read_is_refused_and_the_next_picture_is(
    decoder: MediaDecoder, data: bytes, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^parts\[3\]: ({said})"):
        decoder.picture(data, "parts[3]")
    assert decoder.picture(plain(), "it").width == 56


def test_a_picture_of_one_pixel_is_read(decoder: MediaDecoder) -> None:
    assert decoder.picture(plain(BLUE, (1, 1)), "it").rgb == bytes(BLUE)


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if str(SCRIPT) in one.cmdline()]


@pytest.mark.parametrize(("width", "height"), [(14_000, 14_000), (40_000, 40_000)])
def test_case_e4_a_small_file_of_a_huge_picture_is_refused_by_its_size_before_it_is_decoded(
    decoder: MediaDecoder, width: int, height: int
) -> None:
    decoder.picture(plain(), "it")
    bomb = huge_png(width, height)
    assert len(bomb) < 2**20
    [child] = children()
    before = child.memory_info().rss
    with pytest.raises(
        InvalidRequestError, match=f"has {width} x {height} = {width * height} pixels, at most 16777216"
    ):
        decoder.picture(bomb, "it")
    assert child.memory_info().rss - before < 20 * 2**20
    assert children() == [child]


def test_case_e4_sides_that_are_too_unequal_are_refused(decoder: MediaDecoder) -> None:
    for size in ((1, 50_000), (50_000, 1), (1, 201)):
        with pytest.raises(InvalidRequestError, match="one side may be 200 times the other at most"):
            decoder.picture(plain(size=size), "it")
    assert decoder.picture(plain(size=(1, 200)), "it").height == 200


def test_a_webp_that_promises_more_than_memory_holds_is_refused(decoder: MediaDecoder) -> None:
    small = bytearray(plain(size=(64, 64), form="WEBP", lossless=True))
    at = small.index(b"VP8L") + 9
    small[at : at + 4] = ((16_382) | (16_382 << 14)).to_bytes(4, "little")
    with pytest.raises(InvalidRequestError, match=r"it: (is|has|takes) "):
        decoder.picture(bytes(small), "it")
    assert decoder.picture(plain(), "it").width == 56


def test_the_largest_picture_that_is_allowed_fits_the_memory_that_is_given() -> None:
    limits = MediaLimits(max_image_pixels=2**20, max_pixels=2**20)
    decoder = MediaDecoder(limits, processes=1)
    try:
        exif = Image.Exif()
        exif[0x0112] = 6
        clear = Image.new("RGBA", (1024, 1024), (0, 0, 0, 0))
        assert decoder.picture(encoded(clear, exif=exif), "it").rgb == b"\xff" * (3 * 2**20)
    finally:
        decoder.close()


def test_a_decoder_that_dies_refuses_its_picture_alone_and_is_followed_by_another() -> None:
    others = children()
    decoder = MediaDecoder(MediaLimits(), processes=1)
    try:
        decoder.picture(plain(), "it")
        [child] = set(children()) - set(others)
        child.suspend()
        refused: list[str] = []

        def decode() -> None:
            with pytest.raises(InvalidRequestError) as error:
                decoder.picture(plain(), "it")
            refused.append(str(error.value))

        asking = threading.Thread(target=decode)
        asking.start()
        child.kill()
        asking.join(10)
        assert refused == ["it: exhausts the decoder, which died of it; send it in another form"]
        assert decoder.picture(plain(), "it").width == 56
        assert child not in children()
    finally:
        decoder.close()
    assert set(children()) == set(others)


def test_a_picture_that_takes_too_long_is_refused_and_its_decoder_ended() -> None:
    others = children()
    decoder = MediaDecoder(replace(MediaLimits(), decode_seconds=0.02), processes=1)
    slow = encoded(Image.effect_noise((3000, 3000), 90), "PNG")
    try:
        with pytest.raises(InvalidRequestError, match=r"it: takes longer than 0\.02 s to decode"):
            decoder.picture(slow, "it")
        assert set(children()) == set(others)
    finally:
        decoder.close()


def test_pictures_of_the_same_pixels_have_one_digest_whatever_file_they_come_from(decoder: MediaDecoder) -> None:
    one, same = plain(RED, form="PNG"), plain(RED, form="WEBP", lossless=True)
    assert base64.b64encode(one) != base64.b64encode(same)
    assert decoder.picture(one, "it").digest == decoder.picture(same, "it").digest
    assert decoder.picture(plain(BLUE), "it").digest != decoder.picture(one, "it").digest
