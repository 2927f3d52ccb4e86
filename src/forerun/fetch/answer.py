"""What a server's answer to a request for a file says, and whether it can be believed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import httpx2

from forerun.errors import DownloadError

MAX_FILE_BYTES: Final = 2**42
_RANGE: Final = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
_LONGEST_RETRY_AFTER: Final = 60.0
_STRONG_SECONDS: Final = 60
"""A date of change is a strong validator where it is so much older than the answer (RFC 9110, 8.8.2.2)."""


class CutError(Exception):
    """This connection brings no more, another one may. `after`: seconds that the server asks to wait first."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class StaleError(CutError):
    """What is here does not go together with what the server has: only a start from the beginning helps."""


class UnreachedError(CutError):
    """There was no connection at all."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Which bytes an answer holds."""

    start: int
    total: int
    """Bytes of the whole file."""
    validator: str | None
    """Names this version of the file, strongly."""


def extent_of(response: httpx2.Response, asked_from: int, told: str, size: int | None) -> Extent:
    """The bytes that an answer holds, of those from `asked_from` on.

    `size`: what the file must have. Raises CutError, StaleError, or DownloadError where asking again would be no use.
    """
    _require_no_downgrade(response, told)
    _require_success(response, told)
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise DownloadError(f"{told}: the server sends it compressed, though it was asked not to")
    start, total = _range_of(response) if response.status_code == 206 else (0, _length_of(response, size))
    if start not in (0, asked_from):
        raise StaleError(f"the server sent bytes from {start} on where those from {asked_from} on were asked for")
    if total is None:
        raise DownloadError(
            f"{told}: the server does not say how long the file is: give its --sha256 or another address"
        )
    if not 0 < total <= MAX_FILE_BYTES:
        raise DownloadError(f"{told}: the server says it has {total} bytes, from 1 to {MAX_FILE_BYTES} are taken")
    if size is not None and total != size:
        raise DownloadError(
            f"{told}: the server's file has {total} bytes, {size} are expected: it is another file, or was changed"
        )
    return Extent(start, total, _validator(response.headers))


def _require_no_downgrade(response: httpx2.Response, told: str) -> None:
    hops = [*response.history, response]
    schemes = [hop.url.scheme for hop in hops]
    if "http" in schemes[1:] and schemes[0] == "https":
        raise DownloadError(f"{told}: the server redirects to {response.url.host} without encryption: not followed")


def _require_success(response: httpx2.Response, told: str) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    if status in _LATER:
        raise CutError(f"the server answered {_named(status)}", _retry_after(response.headers))
    if status == 416:
        raise StaleError("the server's file is shorter than what is here already")
    advice = {
        401: "it wants a login: for Hugging Face set HF_TOKEN, or run `hf auth login`",
        403: "access is refused: on Hugging Face accept the model's terms on its page, and set HF_TOKEN",
        404: "there is no such file: look at the spelling",
        410: "it is no longer there",
    }.get(status, "this address gives no file")
    raise DownloadError(f"{told}: {response.url.host} answered {_named(status)}: {advice}")


def _named(status: int) -> str:
    phrase = httpx2.codes.get_reason_phrase(status)
    return f"{status} ({phrase})" if phrase else str(status)


def _range_of(response: httpx2.Response) -> tuple[int, int]:
    match = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None:
        raise StaleError("the server sent a part of the file without saying which")
    return int(match[1]), int(match[3])


def _length_of(response: httpx2.Response, size: int | None) -> int | None:
    length = response.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdecimal() and len(length) < 16 else size


def _retry_after(headers: httpx2.Headers) -> float:
    text = headers.get("retry-after", "")
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isascii() and text.isdecimal() else 0.0


def _validator(headers: httpx2.Headers) -> str | None:
    etag = headers.get("etag", "")
    if etag.startswith('"') and len(etag) < 1000:
        return str(etag)
    changed = headers.get("last-modified", "")
    try:
        age = parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(changed)
    except (KeyError, TypeError, ValueError):
        return None
    return str(changed) if age.total_seconds() >= _STRONG_SECONDS else None
