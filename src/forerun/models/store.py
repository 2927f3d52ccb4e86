"""Where models that were pulled lie: a folder a model, which appears whole and goes whole.

```
FOLDER/qwen2.5-0.5b/model.json, *.gguf        a model: its manifest, and the files that it names
FOLDER/.partial/qwen2.5-0.5b/*.part, *.json   one that is being pulled, or was not pulled to its end
FOLDER/.locks/qwen2.5-0.5b.lock               held while one is pulled or removed
```
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
from filelock import FileLock, Timeout

from forerun.errors import ModelError, ModelNotFoundError

MANIFEST: Final = "model.json"
PARTIAL: Final = ".partial"
FOLDER_VARIABLE: Final = "FORERUN_MODELS"
_LOCKS: Final = ".locks"
_REMOVED: Final = ".removed"
_MAX_MANIFEST_BYTES: Final = 2**20
_PLAIN_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_READABLE: Final = 80
"""Characters of an id that are kept in its folder's name."""


class ModelBusyError(ModelError):
    """Another process pulls or removes the model at this moment."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model, as it was when it was placed."""

    name: str
    role: str
    """What it is to the model: "weights", "projector" or "adapter"."""
    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""

    def __post_init__(self) -> None:
        if not is_file_name(self.name) or self.name == MANIFEST:
            raise ValueError(f"name: {self.name!r} cannot be the name of a model's file")
        if self.size < 0:
            raise ValueError(f"size: {self.size} is negative")
        if not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"sha256: {self.sha256!r} is not 64 hexadecimal digits")


@dataclass(frozen=True, slots=True)
class _Manifest:
    id: str
    origin: str
    files: tuple[StoredFile, ...]
    version: int = 1

    def __post_init__(self) -> None:
        if self.version != 1:
            raise ValueError(f"version: {self.version}, this Forerun reads 1")
        if not any(file.role == "weights" for file in self.files):
            raise ValueError("files: none of them is the weights")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that is here, whole."""

    id: str
    """What it was pulled as: an id of the catalog, or its source as it was typed."""
    origin: str
    """Where it came from, as exactly as that is known."""
    files: tuple[StoredFile, ...]
    """Those of the weights in the order of their parts."""
    folder: Path

    @property
    def path(self) -> Path:
        """The file that llama.cpp is given: the weights, or the first part of them."""
        return self.folder / next(file.name for file in self.files if file.role == "weights")

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class PartialModel:
    """What there is of a model that was not pulled to its end. Pulling it again goes on from there."""

    folder: Path
    size: int
    """Bytes so far."""

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The models below one folder. Safe against other processes: what is read is whole, what changes is locked."""

    folder: Path

    @classmethod
    def of_user(cls) -> Self:
        """In $FORERUN_MODELS, or forerun/models in $XDG_DATA_HOME or ~/.local/share. Raises ModelNotFoundError."""
        configured, data = os.environ.get(FOLDER_VARIABLE, ""), os.environ.get("XDG_DATA_HOME", "")
        try:
            if configured:
                return cls(Path(configured).expanduser().absolute())
            home = Path(data) if os.path.isabs(data) else Path.home() / ".local/share"
        except RuntimeError as error:
            raise ModelNotFoundError(
                f"there is no home folder to keep models in: name one in {FOLDER_VARIABLE}"
            ) from error
        return cls(home / "forerun/models")

    def models(self) -> list[StoredModel]:
        """All that are whole, by id. What lies there besides is passed over."""
        found = [self._read(folder) for folder in _folders(self.folder) if not folder.name.startswith(".")]
        return sorted((model for model in found if model is not None), key=lambda model: model.id)

    def find(self, model_id: str) -> StoredModel | None:
        """The model that was pulled under this id."""
        model = self._read(self.folder / folder_name(model_id))
        return model if model is not None and model.id == model_id else None

    def partials(self) -> list[PartialModel]:
        """What is left of pulls that did not end, or is being pulled now."""
        return [PartialModel(folder, _bytes_in(folder)) for folder in _folders(self.folder / PARTIAL)]

    def partial(self, model_id: str) -> PartialModel | None:
        """What there is of a model that was not pulled to its end."""
        folder = self.folder / PARTIAL / folder_name(model_id)
        return PartialModel(folder, _bytes_in(folder)) if folder.is_dir() else None

    def staging(self, model_id: str) -> Path:
        """The folder that a model is gathered in; made where there is none. The caller holds the model's lock."""
        folder = self.folder / PARTIAL / folder_name(model_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget_staging(self, model_id: str) -> None:
        """Drop the folder of `staging` where nothing came. The caller holds the model's lock."""
        folder = self.folder / PARTIAL / folder_name(model_id)
        if folder.is_dir() and not any(entry.stat().st_size for entry in folder.glob("*.part")):
            shutil.rmtree(folder)

    def place(self, model_id: str, origin: str, files: tuple[StoredFile, ...]) -> StoredModel:
        """Make a model of what was gathered: the files under their names, nothing else beside them.

        In one rename, so that nobody sees half a model; one of the same id goes before. The caller holds the model's
        lock. Raises ValueError for files that no manifest can name.
        """
        staging, target = self.staging(model_id), self.folder / folder_name(model_id)
        manifest = _Manifest(model_id, origin, files)
        wanted = {file.name for file in files}
        for entry in staging.iterdir():
            if entry.name not in wanted:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        _write_through(staging / MANIFEST, text + b"\n")
        if target.exists():
            self._drop(target)
        os.rename(staging, target)
        _sync_folder(self.folder)
        return StoredModel(model_id, origin, files, target)

    def remove(self, model_id: str) -> int:
        """Delete a model, or what there is of it; the bytes that this frees. The caller holds the model's lock."""
        name, freed = folder_name(model_id), 0
        for folder in (self.folder / name, self.folder / PARTIAL / name):
            if folder.is_dir():
                freed += _bytes_in(folder)
                self._drop(folder)
        return freed

    @contextmanager
    def locked(self, model_id: str) -> Iterator[None]:
        """Hold the model's lock, which dies with its process. Raises ModelBusyError at once where another has it."""
        folder = self.folder / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{folder_name(model_id)}.lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise ModelBusyError(
                f"{model_id}: another process pulls or removes it: try again when it has ended"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _read(self, folder: Path) -> StoredModel | None:
        try:
            with (folder / MANIFEST).open("rb") as file:
                manifest = msgspec.json.decode(file.read(_MAX_MANIFEST_BYTES), type=_Manifest)
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None
        return StoredModel(manifest.id, manifest.origin, manifest.files, folder)

    def _drop(self, folder: Path) -> None:
        """First out of sight, in one rename; then its bytes."""
        trash = self.folder / _REMOVED
        trash.mkdir(exist_ok=True)
        away = Path(tempfile.mkdtemp(dir=trash))
        os.rename(folder, away / folder.name)
        shutil.rmtree(away)


def folder_name(model_id: str) -> str:
    """The folder of a model: its id where that is a plain name, else what of it can be read, and a digest."""
    if _PLAIN_ID.fullmatch(model_id):
        return model_id
    readable = _UNSAFE.sub("-", model_id).strip("-.")[:_READABLE]
    return f"{readable}-{hashlib.sha256(model_id.encode(errors='surrogatepass')).hexdigest()[:8]}"


def is_file_name(name: str) -> bool:
    """Whether a file can have this name in any folder, on any system, and is not hidden."""
    forbidden = set('/\\:*?"<>|\0')
    return 0 < len(name.encode(errors="replace")) <= 240 and not name.startswith(".") and not forbidden & set(name)


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(entry for entry in parent.iterdir() if entry.is_dir())
    except OSError:
        return []


def _bytes_in(folder: Path) -> int:
    total = 0
    for entry in folder.rglob("*"):
        with suppress(OSError):
            total += entry.lstat().st_size if not entry.is_dir() else 0
    return total


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system lets a folder be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
