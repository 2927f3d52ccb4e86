"""What a server's answer says, without a server."""

from __future__ import annotations

import httpx2
import pytest

from forerun.errors import DownloadError
from forerun.fetch.answer import CutError, Extent, StaleError, extent_of

URL = "https://example.org/m.gguf"
DATES = {"Date": "Wed, 21 Oct 2026 07:28:00 GMT", "Last-Modified": "Wed, 21 Oct 2026 07:00:00 GMT"}


def answer(status: int = 200, url: str = URL, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, headers=named, request=httpx2.Request("GET", url))


def extent(response: httpx2.Response, asked_from: int = 0, size: int | None = None) -> Extent:
    return extent_of(response, asked_from, "m.gguf", size)


def test_a_whole_file_begins_at_its_beginning() -> None:
    assert extent(answer(Content_Length="100", ETag='"a"')) == Extent(0, 100, '"a"')


def test_a_part_says_where_it_begins_and_how_long_the_whole_is() -> None:
    assert extent(answer(206, Content_Range="bytes 40-99/100"), 40) == Extent(40, 100, None)


@pytest.mark.parametrize("said", ["", "bytes 40-99/*", "items 40-99/100", "bytes 40-99/100, 3", "bytes 41-99/100"])
def test_a_part_that_is_not_the_one_that_was_asked_for_is_not_joined(said: str) -> None:
    with pytest.raises(StaleError):
        extent(answer(206, Content_Range=said), 40)


@pytest.mark.parametrize("said", ["", "-1", "1e3", "0x10", "9" * 30])
def test_a_length_that_is_none_is_only_good_enough_where_it_is_known_already(said: str) -> None:
    assert extent(answer(Content_Length=said), size=7).total == 7
    with pytest.raises(DownloadError, match="does not say how long the file is"):
        extent(answer(Content_Length=said))


@pytest.mark.parametrize("total", [0, 2**43])
def test_lengths_that_no_model_has_are_refused(total: int) -> None:
    with pytest.raises(DownloadError, match=f"says it has {total} bytes"):
        extent(answer(Content_Length=str(total)))


def test_compressed_answers_are_refused() -> None:
    with pytest.raises(DownloadError, match="compressed"):
        extent(answer(Content_Length="100", Content_Encoding="gzip"))


def test_what_was_asked_for_with_encryption_does_not_come_without() -> None:
    response = answer(Content_Length="100", url="http://example.org/m.gguf")
    response.history = [answer(302)]
    with pytest.raises(DownloadError, match=r"redirects to example\.org without encryption"):
        extent(response)
    response.history = [answer(302, url="http://example.org/")]  # there was none to begin with
    assert extent(response).total == 100


@pytest.mark.parametrize(("said", "seconds"), [("7", 7.0), ("86400", 60.0), ("", 0.0), ("-1", 0.0), ("Wed, 21", 0.0)])
def test_a_busy_server_is_given_the_time_it_asks_for_within_limits(said: str, seconds: float) -> None:
    with pytest.raises(CutError) as cut:
        extent(answer(503, Retry_After=said))
    assert cut.value.after == seconds


@pytest.mark.parametrize(
    ("headers", "validator"),
    [
        ({"ETag": '"a"', **DATES}, '"a"'),
        ({"ETag": 'W/"a"'}, None),
        (DATES, DATES["Last-Modified"]),
        ({**DATES, "Last-Modified": DATES["Date"]}, None),
        ({"Last-Modified": DATES["Last-Modified"]}, None),
        ({"Date": "yesterday", "Last-Modified": "today"}, None),
        ({}, None),
    ],
)
def test_only_what_names_a_version_for_sure_is_a_validator(headers: dict[str, str], validator: str | None) -> None:
    response = httpx2.Response(200, headers={"Content-Length": "9", **headers}, request=httpx2.Request("GET", URL))
    assert extent(response).validator == validator
