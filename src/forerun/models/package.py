"""What a model is by its content: the same for the same files, wherever they lie and whatever they are called.

A *package* is the files of one model, each with its role. A *bundle* is a target's package and what drafts for it: two
engines of one bundle compute the same KV for both, so stored prefixes are kept under its key (decision 26).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forerun.models.catalog_format import FileRole, Method
from forerun.models.file_digest import Progress, file_digest
from forerun.models.gguf_header import GgufHeader
from forerun.models.split_names import part_names

_VERSION: Final = 1
"""Of what ids and keys are made from: another one means other ids for the same files."""

EMBEDDED: Final = "embedded"


@dataclass(frozen=True, slots=True, order=True)
class PackageFile:
    """One file of a model, by what it is to it and what is in it."""

    role: FileRole
    sha256: str


@dataclass(frozen=True, slots=True)
class Package:
    """The files of one model."""

    files: tuple[PackageFile, ...]

    @property
    def id(self) -> str:
        """64 hexadecimal digits behind "package_". The order in which the files were named does not matter."""
        files = [{"role": str(file.role), "sha256": file.sha256} for file in sorted(self.files)]
        return _named("package", {"version": _VERSION, "files": files})


@dataclass(frozen=True, slots=True)
class Bundle:
    """A target and what drafts for it. Limits and thresholds are no part of it: they change no KV."""

    target: str
    """Its package's id."""
    method: Method = Method.NGRAM
    """What drafts besides the request's own text and past outputs, which need no file and are there for every model."""
    draft: str | None = None
    """Where the draft comes from: a package's id, EMBEDDED in the target's own file, or None, nowhere."""

    def __post_init__(self) -> None:
        expected = {Method.NGRAM: self.draft is None, Method.MTP: self.draft == EMBEDDED}
        if not expected.get(self.method, self.draft not in (None, EMBEDDED)):
            raise ValueError(f"draft: {self.draft!r} is no source for method {self.method!r}")

    @property
    def key(self) -> str:
        """64 hexadecimal digits behind "bundle_": equal on every machine for the same files."""
        draft = {"source": "none" if self.draft is None else EMBEDDED if self.draft == EMBEDDED else "package"}
        if self.draft not in (None, EMBEDDED):
            draft["package"] = self.draft
        content = {"version": _VERSION, "target": self.target, "method": str(self.method), "draft": draft}
        return _named("bundle", content)


def _named(kind: str, content: dict[str, Any]) -> str:
    """The digest of canonical JSON: sorted keys, no spaces, ASCII alone."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{kind}_{hashlib.sha256(text.encode()).hexdigest()}"


def part_paths(header: GgufHeader) -> tuple[Path, ...]:
    """The files of a model whose first part this header is of, in order; its own file where it is not split.

    Those are their names, as llama.cpp finds them; whether they are there is not looked at.
    """
    names = part_names(header.path.name)
    if len(names) != (header.integer("split.count") or 1):
        return (header.path,)
    return tuple(header.path.with_name(name) for name in names)


def package_of(
    header: GgufHeader,
    projector: Path | None = None,
    adapters: Iterable[Path] = (),
    progress: Progress | None = None,
) -> Package:
    """A model's package; reads files whose digests are not known yet. Raises ModelLoadError."""
    weights, *parts = part_paths(header)
    roles = [(FileRole.WEIGHTS, weights), *((FileRole.SPLIT_PART, part) for part in parts)]
    roles += [(FileRole.PROJECTOR, projector)] if projector is not None else []
    roles += [(FileRole.ADAPTER, adapter) for adapter in adapters]
    return Package(tuple(PackageFile(role, file_digest(path, progress)) for role, path in roles))


def bundle_of(
    target: GgufHeader, draft: GgufHeader | None = None, *, has_mtp: bool = False, progress: Progress | None = None
) -> Bundle:
    """A target with a draft model, with its own MTP head (`has_mtp`), or alone. Raises ModelLoadError."""
    package = package_of(target, progress=progress).id
    if has_mtp:
        return Bundle(package, Method.MTP, EMBEDDED)
    if draft is None:
        return Bundle(package)
    return Bundle(package, Method.DRAFT, package_of(draft, progress=progress).id)
