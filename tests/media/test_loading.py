"""From what requests name to pictures: told apart, bounded, decoded once."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from forerun.errors import InvalidConfigError, InvalidRequestError, OverloadedError
from forerun.media.item import Media
from forerun.media.kind import MediaKind
from forerun.media.limits import MediaLimits
from forerun.media.loading import MediaLoader
from forerun.media.picture import Picture
from forerun.media.remembered import RememberedMedia
from forerun.media.sources import Base64, MediaSource, Url
from tests.media.pictures import BLUE, RED, plain

IMAGES = frozenset({MediaKind.IMAGE})


def data_url(file: bytes, header: str = "data:image/png;base64") -> Url:
    return Url(f"{header},{base64.b64encode(file).decode()}")


def image(at: Url | Base64, field: str = "it") -> MediaSource:
    return MediaSource(MediaKind.IMAGE, field, at)


def sources(*given: Url | Base64) -> list[MediaSource]:
    return [image(at, f"parts[{index}]") for index, at in enumerate(given)]


@pytest.fixture(scope="module")
def loader() -> Iterator[MediaLoader]:
    one = MediaLoader(MediaLimits(max_items=4, max_image_pixels=10_000, max_pixels=12_000, max_item_bytes=5_000))
    yield one
    one.close()


def loaded(loader: MediaLoader, given: Sequence[MediaSource]) -> list[Media]:
    return asyncio.run(loader.load(given))


def pictures(loader: MediaLoader, given: Sequence[MediaSource]) -> list[Picture]:
    return [item for item in loaded(loader, given) if isinstance(item, Picture)]


def refusal(loader: MediaLoader, given: Sequence[MediaSource]) -> str:
    with pytest.raises(InvalidRequestError) as error:
        loaded(loader, given)
    return str(error.value)


def test_pictures_come_in_the_order_they_were_named_in_and_equal_ones_are_one(loader: MediaLoader) -> None:
    red, blue = plain(RED), plain(BLUE)
    found = pictures(loader, sources(data_url(red), Base64(base64.b64encode(blue).decode()), data_url(red)))
    assert [picture.rgb[:3] for picture in found] == [bytes(RED), bytes(BLUE), bytes(RED)]
    assert found[0] is found[2]
    assert pictures(loader, sources(data_url(blue)))[0] is found[1]  # it was not decoded again


@pytest.mark.parametrize(
    "header", ["data:image/png;base64", "DATA:;BASE64", "data:image/jpeg;name=a.png;base64", "data:text/html;base64"]
)
def test_what_a_picture_is_is_told_from_its_bytes(loader: MediaLoader, header: str) -> None:
    assert pictures(loader, [image(data_url(plain(RED), header))])[0].rgb[:3] == bytes(RED)


def test_base64_may_be_broken_into_lines(loader: MediaLoader) -> None:
    lines = base64.encodebytes(plain(RED)).decode()
    assert "\n" in lines
    assert pictures(loader, [image(Base64(lines))])[0].width == 56


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (Url("data:image/png,abc"), "a data: URL without base64 data"),
        (Url("data:image/png;base64"), "a data: URL without base64 data"),
        (Url("data:image/png;base64,"), "is empty"),
        (Url("data:image/png;base64,@@@@"), "is no base64: "),
        (Url("data:image/png;base64,iVBORw0"), "is no base64: "),
        (Url("data:image/png;base64,äöü"), "is no base64: "),
        (Base64("iVBORw0KGg==="), "is no base64: "),
        (Base64("A" * 8_000), "has about 6000 bytes, at most 5000 are read"),
        (Url(""), "is no address that is read here"),
        (Url("iVBORw0KGgo"), "is no address that is read here"),
        (Url("ftp://example.org/a.png"), "is no address that is read here, it begins with 'ftp://example.org/a."),
        (Url("javascript:alert(1)"), "is no address that is read here"),
        (Url("https://example.org/" + "a" * 9_000), "has 9020 characters, an address has 8192 at most"),
        (Url("https://example.org/a.png"), "fetches none: send a data: URL, or start it with --allow-media-url"),
        (Url("file:///etc/passwd"), "reads none: send a data: URL, or start it with --media-root"),
        (Url("file:a.png"), "reads none"),
    ],
)
def test_what_leads_to_no_picture_is_refused_by_name(loader: MediaLoader, at: Url | Base64, said: str) -> None:
    found = refusal(loader, [image(data_url(plain(BLUE)), "right"), image(at, "wrong")])
    assert found.startswith("wrong: ")
    assert said in found


def test_a_request_has_so_many_pictures_and_pixels_at_most(loader: MediaLoader) -> None:
    five = sources(*[data_url(plain((index, 0, 0))) for index in range(5)])
    with pytest.raises(
        InvalidRequestError, match=r"parts\[4\]: is one of 5 images and recordings, a request may have 4"
    ):
        loader.check(five, IMAGES)
    loader.check(five[:4], IMAGES)
    assert "has 101 x 100 = 10100 pixels, at most 10000" in refusal(loader, sources(data_url(plain(size=(101, 100)))))
    two = sources(data_url(plain(RED, (80, 80))), data_url(plain(BLUE, (80, 80))))
    assert "brings the request's pictures to 12800 pixels, at most 12000 are read" in refusal(loader, two)
    assert len(loaded(loader, [two[0], two[0]])) == 2  # one picture, twice


def test_what_the_model_cannot_be_shown_is_refused_before_it_is_read(loader: MediaLoader) -> None:
    loader.check([image(Url("?"))], IMAGES)
    with pytest.raises(InvalidRequestError, match=r"it: is an image, and this model reads text alone: .*--mmproj"):
        loader.check([image(Url("?"))], frozenset())


def test_files_of_the_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(plain(RED))
    (tmp_path / "b.txt").write_bytes(b"text")
    loader = MediaLoader(root=tmp_path)
    try:
        assert pictures(loader, [image(Url("file:a.png"))])[0].width == 56
        assert "is no picture" in refusal(loader, [image(Url("file:b.txt"))])
        assert "is no file under" in refusal(loader, [image(Url("file:../x"))])
    finally:
        loader.close()
    with pytest.raises(InvalidConfigError, match="media_root"):
        MediaLoader(root=tmp_path / "missing")


def picture(number: int) -> Picture:
    return Picture.of(10, 10, bytes([number]) * 300)


def test_case_k6_what_is_remembered_stays_within_its_budget_over_500_pictures() -> None:
    remembered = RememberedMedia(kept_bytes=3_000, held_bytes=100_000)
    for number in range(500):
        remembered.add(b"%d" % number, picture(number % 251))
        assert remembered.held_bytes <= 3_000
    assert remembered.find(b"499") is not None
    assert remembered.find(b"0") is None


def test_pictures_of_open_requests_are_found_and_bounded() -> None:
    remembered = RememberedMedia(kept_bytes=300, held_bytes=900)
    held = [remembered.add(b"%d" % number, picture(number)) for number in range(3)]
    assert remembered.find(b"0") is held[0]
    assert remembered.add(b"0", picture(0)) is held[0]
    with pytest.raises(OverloadedError, match="would take 1200 bytes, at most 900 are held"):
        remembered.add(b"3", picture(3))
    held.clear()
    gc.collect()
    assert remembered.add(b"3", picture(3)) == picture(3)
