"""Which files of the catalog's models are here: pulled, or installed as a package's.

A file that was pulled is known by its content, under whatever name it was pulled: a draft may be there for another
target's sake.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from forerun.errors import ModelNotFoundError
from forerun.models.catalog import load_catalog
from forerun.models.catalog_format import ListedModel, RemoteFile
from forerun.models.store import ModelStore, StoredModel

_PACKAGE: Final = "pypi:"


def looks_like_a_name(name: str) -> bool:
    """Whether a user means an id rather than a path."""
    return not ("/" in name or "\\" in name or name.endswith(".gguf")) and name != ""


def find_listed(name: str) -> ListedModel | None:
    """The model of the catalog with this id; None where there is none, or the name is a path. Raises CatalogError."""
    return load_catalog().get(name) if looks_like_a_name(name) else None


def listed_here(wanted: RemoteFile) -> Path | None:
    """Where a file of the catalog lies on this machine; None where it does not."""
    if wanted.repository.startswith(_PACKAGE) and (path := _installed(wanted)) is not None:
        return path
    for model in models_here():
        for file in model.files:
            if file.sha256 == wanted.sha256:
                return model.folder / file.name
    return None


def models_here() -> list[StoredModel]:
    """All that were pulled, by id."""
    try:
        return ModelStore.of_user().models()
    except ModelNotFoundError:  # there is no home folder, so nothing was pulled
        return []


def _installed(wanted: RemoteFile) -> Path | None:
    """A file of a package that is installed, without importing it: its import may pull in many others."""
    try:
        path = Path(str(distribution(wanted.repository.removeprefix(_PACKAGE)).locate_file(wanted.file)))
        return path if path.stat().st_size == wanted.size else None
    except (PackageNotFoundError, OSError):
        return None


def pulled(name: str) -> Path | None:
    """The file of a model that was pulled under this name."""
    try:
        model = ModelStore.of_user().find(name)
    except ModelNotFoundError:
        return None
    return None if model is None else model.path
