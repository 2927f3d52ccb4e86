"""Hugging Face's hub: which files a repository has, at which addresses, with which sha256."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, and exported in silence

from forerun.errors import DownloadError, InvalidConfigError
from forerun.fetch.http_file import HttpFile
from forerun.fetch.sources import HubFile

_TIMEOUT: Final = 15.0
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_OFFERED: Final = 12
"""File names that a message lists at most."""


@dataclass(frozen=True, slots=True)
class HubEntry:
    """What the hub says of a file."""

    size: int | None
    sha256: str | None
    """None for the few files that are kept in git itself."""


@dataclass(frozen=True, slots=True)
class HubListing:
    """A repository's files as of one commit."""

    commit: str | None
    files: Mapping[str, HubEntry]
    """By path."""

    def require(self, source: HubFile) -> str:
        """The path of the file that is meant. Raises InvalidConfigError saying which there are."""
        if source.path is not None and source.path in self.files:
            return source.path
        models = sorted(path for path in self.files if path.endswith(".gguf") and path.isprintable())
        if not models:
            raise InvalidConfigError("model", f"{source}: there is no GGUF file in this repository")
        offered = ", ".join(models[:_OFFERED]) + (f" and {len(models) - _OFFERED} more" if models[_OFFERED:] else "")
        problem = "name one of its files" if source.path is None else "there is no such file"
        raise InvalidConfigError("model", f"{source}: {problem}; the repository has {offered}")


def list_repository(source: HubFile) -> HubListing:
    """Ask the hub. Raises DownloadError: no connection, no such repository or revision, no access."""
    if (barred := _barred()) is not None:
        raise DownloadError(f"{source}: {barred}")
    try:
        info = HfApi(endpoint=_endpoint()).model_info(
            source.repository, revision=source.revision, files_metadata=True, timeout=_TIMEOUT
        )
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx2.HTTPError) as error:
        raise DownloadError(f"{source}: {_reason(source, error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # no answer of the hub's API
        raise DownloadError(f"{source}: {_host()} gave an answer that makes no sense: {error}") from error
    siblings = info.siblings or ()
    return HubListing(info.sha, {one.rfilename: HubEntry(_size_of(one), _sha256_of(one)) for one in siblings})


def hub_file(source: HubFile, path: str, size: int | None, sha256: str | None) -> HttpFile:
    """A file of the hub as it is fetched, with the user's token where there is one."""
    url = hf_hub_url(source.repository, path, revision=source.revision, endpoint=_endpoint())
    headers = build_hf_headers(library_name="forerun")
    return HttpFile(url, str(HubFile(source.repository, path, source.revision)), size, sha256, headers, _barred())


def _endpoint() -> str:
    """Read each time: `huggingface_hub` reads it once, when it is imported."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def _host() -> str:
    return httpx2.URL(_endpoint()).host


def _barred() -> str | None:
    return "not fetched: HF_HUB_OFFLINE is set" if constants.is_offline_mode() else None


def _size_of(sibling: Any) -> int | None:
    return sibling.size if isinstance(sibling.size, int) else None


def _sha256_of(sibling: Any) -> str | None:
    found = getattr(sibling.lfs, "sha256", None)
    return found if isinstance(found, str) and _SHA256.fullmatch(found) else None


def _reason(source: HubFile, error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        page = f"{_endpoint()}/{source.repository}"
        return f"its owner asks for consent: accept the terms at {page}, then set HF_TOKEN or run `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or it is private and HF_TOKEN gives no access to it"
    if isinstance(error, RevisionNotFoundError):
        return f"the repository has no revision {source.revision!r}"
    if isinstance(error, HfHubHTTPError):
        return f"{_host()} answered {error.response.status_code}: try again later"
    if isinstance(error, httpx2.TimeoutException):
        return f"{_host()} did not answer within {_TIMEOUT:g} s"
    if isinstance(error, httpx2.HTTPError):
        return (
            f"{_host()} cannot be reached ({error}): is this machine online? `forerun models list` shows what is here"
        )
    return str(error)
