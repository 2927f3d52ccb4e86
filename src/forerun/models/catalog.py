"""The models that have an id: those that Forerun ships, and those that a user adds.

A user's own are read from the folder `user_catalog_folder()`, catalog.toml and catalog.json, or from the file that
$FORERUN_CATALOG names instead; an id of theirs hides a shipped one. docs/models.md says what to write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from forerun.errors import CatalogError
from forerun.models.catalog_format import CatalogDocument, ListedModel, Method

MAX_CATALOG_BYTES: Final = 4 * 2**20
_SHIPPED: Final = "catalog.toml"
_AT: Final = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<path>[^`]*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`")
_ENUM: Final = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_CHOICES: Final = {
    "version": "must be 1",
    "method": f"must be one of {', '.join(Method)}",
    "draft": "must be 'embedded' or a table with repository, file, sha256 and size",
}
_FIELD: Final = re.compile(r"(?P<field>[\w.\[\]]+): (?P<problem>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models by id."""

    models: Mapping[str, ListedModel]
    sources: Mapping[str, str]
    """The file that each id is from; "shipped" for those of Forerun's own."""

    def get(self, model_id: str) -> ListedModel | None:
        return self.models.get(model_id)

    def __iter__(self) -> Iterator[ListedModel]:
        return iter(self.models.values())


def load_catalog() -> Catalog:
    """All models that have an id. Raises CatalogError naming file and field."""
    models: dict[str, ListedModel] = {}
    sources: dict[str, str] = {}
    documents = [("shipped", _shipped()), *((str(path), _read(path)) for path in user_catalogs())]
    for source, document in documents:
        for model in document.models:
            models[model.id] = model
            sources[model.id] = source
    return Catalog(models, sources)


@cache
def _shipped() -> CatalogDocument:
    return parse_catalog(files("forerun.models").joinpath(_SHIPPED).read_bytes(), _SHIPPED)


def user_catalogs() -> list[Path]:
    """The files of a user's own catalog that are there."""
    if named := os.environ.get("FORERUN_CATALOG"):
        return [Path(named).expanduser()]
    folder = user_catalog_folder()
    candidates = [] if folder is None else [folder / "catalog.toml", folder / "catalog.json"]
    return [path for path in candidates if path.is_file()]


def user_catalog_folder() -> Path | None:
    """$XDG_CONFIG_HOME/forerun (where absolute), or ~/.config/forerun; None where there is no home folder."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    except RuntimeError:
        return None
    return folder / "forerun"


def parse_catalog(content: bytes, name: str) -> CatalogDocument:
    """A catalog's file, TOML or JSON by its `name`. Raises CatalogError naming it and the path of the field."""
    decode = msgspec.json.decode if name.endswith(".json") else msgspec.toml.decode
    try:
        return decode(content, type=CatalogDocument)
    except msgspec.ValidationError as error:
        raise CatalogError(name, *_place(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CatalogError(name, "", f"cannot be read: {error}") from None


def _read(path: Path) -> CatalogDocument:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CATALOG_BYTES + 1)
    except OSError as error:
        raise CatalogError(str(path), "", f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_CATALOG_BYTES:
        raise CatalogError(str(path), "", f"longer than {MAX_CATALOG_BYTES} bytes")
    return parse_catalog(content, str(path))


def _place(error: msgspec.ValidationError) -> tuple[str, str]:
    """The path of the field that is wrong, and what is wrong with it."""
    match = _AT.fullmatch(str(error))
    problem, path = (match["problem"], match["path"]) if match else (str(error), "")
    if unknown := _UNKNOWN.fullmatch(problem):
        return _joined(path, unknown["name"]), "unknown field"
    if missing := _MISSING.fullmatch(problem):
        return _joined(path, missing["name"]), "is missing"
    if enum := _ENUM.fullmatch(problem):
        wanted = _CHOICES.get(path.rpartition(".")[2], "is not one of the words allowed here")
        return path, f"{wanted}, got {enum['value']}"
    if isinstance(error.__cause__, ValueError) and (ours := _FIELD.fullmatch(problem)):
        return _joined(path, ours["field"]), ours["problem"]
    return path, problem[:1].lower() + problem[1:]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
