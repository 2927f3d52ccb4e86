"""What a pull will fetch, as a value: made of a source, or of a model of the catalog."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.errors import InvalidConfigError
from forerun.fetch.http_file import HttpFile
from forerun.fetch.packages import WantedFromPackage
from forerun.models.store import MANIFEST, is_file_name


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file of a model, and where it is to be had."""

    name: str
    """What it will be called here; no two of a plan have the same."""
    role: str
    origin: HttpFile | WantedFromPackage

    @property
    def told(self) -> str:
        """What messages call it."""
        return self.origin.told if isinstance(self.origin, HttpFile) else str(self.origin.source)


@dataclass(frozen=True, slots=True)
class PullPlan:
    """All files of a model."""

    id: str
    """What it can be named by afterwards."""
    origin: str
    """Where it comes from, as exactly as that is known before it is fetched."""
    files: tuple[PlannedFile, ...]
    """The weights first, their parts in order."""
    advice: str | None = None
    """What the user should know beforehand."""

    def __post_init__(self) -> None:
        """Raises InvalidConfigError where two files would have one name, or a name that no file here can have."""
        names = [file.name for file in self.files]
        for index, name in enumerate(names):
            if not is_file_name(name) or name == MANIFEST:
                raise InvalidConfigError("model", f"{self.id}: a file here cannot be called {name!r}")
            if name in names[:index]:
                raise InvalidConfigError("model", f"{self.id}: two of its files are called {name!r}")

    @property
    def size(self) -> int | None:
        """Bytes of all files; None where that is not known yet."""
        sizes = [file.origin.size for file in self.files]
        return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)
