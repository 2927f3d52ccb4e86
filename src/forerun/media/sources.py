"""Where a request says that an item of media is, told apart before anything is read."""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from forerun.errors import InvalidRequestError
from forerun.media.kind import MediaKind

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_MAX_ADDRESS: Final = 8192
"""Characters of an address that is no data: URL."""


@dataclass(frozen=True, slots=True)
class Base64:
    """The file itself."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Url:
    """The file's address: data:, http:, https: or file:."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class MediaSource:
    """An item of media that has not been read yet. `field`: what the request calls it."""

    kind: MediaKind
    field: str
    at: Base64 | Url


@dataclass(frozen=True, slots=True)
class HttpAddress:
    url: str


@dataclass(frozen=True, slots=True)
class FileAddress:
    url: str


Place: TypeAlias = Base64 | HttpAddress | FileAddress
"""What has to be read, in what way."""


def place_of(source: MediaSource) -> Place:
    """Raises InvalidRequestError, naming the source's field."""
    if isinstance(source.at, Base64):
        return source.at
    url = source.at.text
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if scheme == "data":
        return _data_of(url, source.field)
    if len(url) > _MAX_ADDRESS:
        raise InvalidRequestError(source.field, f"has {len(url)} characters, an address has {_MAX_ADDRESS} at most")
    if scheme in ("http", "https"):
        return HttpAddress(url)
    if scheme == "file":
        return FileAddress(url)
    said = f"is no address that is read here, it begins with {url[:20]!r}: send data:image/png;base64,..."
    raise InvalidRequestError(source.field, said)


def _data_of(url: str, field: str) -> Base64:
    header, comma, data = url.partition(",")
    if not comma or not header.lower().endswith(";base64"):
        raise InvalidRequestError(
            field, f"is a data: URL without base64 data: send data:image/png;base64,... not {header[:40]!r}"
        )
    return Base64(data)


def decoded_base64(given: Base64, field: str, max_bytes: int) -> bytes:
    """The bytes of a file. What is too long is not decoded. Raises InvalidRequestError naming `field`."""
    text = given.text
    if len(text) // 4 * 3 > max_bytes + 2:
        raise InvalidRequestError(field, f"has about {len(text) // 4 * 3} bytes, at most {max_bytes} are read")
    try:
        return binascii.a2b_base64(
            "".join(text.split()) if any(space in text for space in " \r\n\t") else text, strict_mode=True
        )
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(field, f"is no base64: {error}") from None
