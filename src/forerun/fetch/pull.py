"""A pull, from its plan to a model in the store: several files at once, all of them right or none placed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forerun.errors import DownloadError, ModelError
from forerun.fetch.http_file import HttpFile
from forerun.fetch.limits import RESERVE, Patience, Space
from forerun.fetch.packages import PackageReader
from forerun.fetch.part import Part
from forerun.fetch.plan import PlannedFile, PullPlan
from forerun.fetch.transfer import Transfer, http_client
from forerun.models.file_digest import remember_digest
from forerun.models.gguf_header import read_header
from forerun.models.store import ModelBusyError, ModelStore, StoredFile, StoredModel

_LOCK_POLL: Final = 0.2
_WEIGHTS: Final = ("weights", "split part")


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How a pull goes about it."""

    at_once: int = 4
    """Files that are fetched side by side."""
    patience: Patience = field(default_factory=Patience)
    reserve: int = RESERVE
    """Bytes of the disk that are left free."""


class PullListener:
    """Told what a pull does. This one shows nothing."""

    def waits(self, plan: PullPlan) -> None:
        """Another process pulls the same model: this pull waits until it has ended."""

    def progress(self, name: str, done: int, total: int) -> None:
        """So many bytes of a file are here."""

    def checks(self, plan: PullPlan) -> None:
        """All bytes are here, and are looked at."""


async def pull_all(
    plans: Sequence[PullPlan], store: ModelStore, listener: PullListener, options: PullOptions
) -> list[StoredModel | DownloadError]:
    """Fetch what is not here yet, side by side; of each plan the model as it is placed, or why there is none.

    A model that another process pulls is waited for. Cancelled or failed, a pull leaves what has come, and the next one
    goes on from there. Raises OSError where the store's folder cannot be made.
    """
    store.folder.mkdir(parents=True, exist_ok=True)
    space = Space.of(store.folder, options.reserve)
    async with http_client(options.patience) as client:
        transfer = Transfer(client, options.patience, space, listener.progress)
        packages = PackageReader(space, listener.progress)
        puller = _Puller(store, listener, space, transfer, packages, asyncio.Semaphore(options.at_once))
        return await asyncio.gather(*(puller.outcome(plan) for plan in plans))


def already_here(plan: PullPlan, store: ModelStore) -> StoredModel | None:
    """The model of this plan, where it is in the store with the content that the plan expects."""
    known = store.find(plan.id)
    if known is None:
        return None
    have = {file.name: file.sha256 for file in known.files}
    expected = {file.name: file.origin.sha256 for file in plan.files}
    agrees = have.keys() == expected.keys() and all(sha256 in (None, have[name]) for name, sha256 in expected.items())
    return known if agrees else None


@dataclass(frozen=True, slots=True)
class _Puller:
    """What all models of one pull share."""

    store: ModelStore
    listener: PullListener
    space: Space
    transfer: Transfer
    packages: PackageReader
    gate: asyncio.Semaphore

    async def outcome(self, plan: PullPlan) -> StoredModel | DownloadError:
        try:
            return await self._locked_pull(plan)
        except DownloadError as error:
            return error
        except OSError as error:
            reason = error.strerror or error
            return DownloadError(f"{plan.id}: {self.store.folder} cannot be written: {reason}")

    async def _locked_pull(self, plan: PullPlan) -> StoredModel:
        told = False
        while True:
            try:
                with self.store.locked(plan.id):
                    return already_here(plan, self.store) or await self._pull(plan)
            except ModelBusyError:
                if not told:
                    self.listener.waits(plan)
                told = True
                await asyncio.sleep(_LOCK_POLL)

    async def _pull(self, plan: PullPlan) -> StoredModel:
        staging = self.store.staging(plan.id)
        try:
            fetched = await self._fetch_files(plan, staging)
        except DownloadError:
            self.store.forget_staging(plan.id)
            raise
        self.listener.checks(plan)
        for file in plan.files:
            os.replace(fetched[file.name].path, staging / file.name)
            _require_sound(file, staging, plan)
        files = tuple(
            StoredFile(file.name, file.role, fetched[file.name].size, fetched[file.name].sha256) for file in plan.files
        )
        model = self.store.place(plan.id, plan.origin, files)
        for stored in files:
            remember_digest(model.folder / stored.name, stored.sha256)
        return model

    async def _fetch_files(self, plan: PullPlan, staging: Path) -> Mapping[str, Part]:
        """All files, by name. The first that cannot be had ends the others."""
        parts = {file.name: _part_path(staging, file.name) for file in plan.files}
        missing = {file.told: _missing(file, parts[file.name]) for file in plan.files}
        self.space.claim({told: size for told, size in missing.items() if size is not None})
        fetched: dict[str, Part] = {}

        async def fetch(file: PlannedFile) -> None:
            fetched[file.name] = await self._fetch(file, parts[file.name])

        try:
            async with asyncio.TaskGroup() as group:
                for file in plan.files:
                    group.create_task(fetch(file))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return fetched

    async def _fetch(self, file: PlannedFile, path: Path) -> Part:
        async with self.gate:
            if isinstance(file.origin, HttpFile):
                return await self.transfer.fetch(file.origin, path)
            return await self.packages.fetch(file.origin, path)


def _part_path(staging: Path, name: str) -> Path:
    """Where a file is gathered; what an earlier pull had brought to its end, and did not place, goes back there."""
    path = staging / f"{name}.part"
    if (staging / name).exists() and not path.exists():
        os.replace(staging / name, path)
    return path


def _missing(file: PlannedFile, part: Path) -> int | None:
    """Bytes that are still to be written for a file, where its size is known. A wheel lies beside what is in it."""
    if file.origin.size is None:
        return None
    if not isinstance(file.origin, HttpFile):
        return 2 * file.origin.size
    return max(0, file.origin.size - (part.stat().st_size if part.exists() else 0))


def _require_sound(file: PlannedFile, staging: Path, plan: PullPlan) -> None:
    """What came is a GGUF, all of it; deletes it else. Whether it can be run is not for a pull to say."""
    path = staging / file.name
    parts = sum(one.role in _WEIGHTS for one in plan.files)
    try:
        header = read_header(path)
    except ModelError as error:
        path.unlink(missing_ok=True)
        raise DownloadError(f"{file.told}: what came is no sound GGUF and was deleted: {error}") from error
    if header.is_truncated:
        path.unlink()
        raise DownloadError(
            f"{file.told}: what came is cut and was deleted: it has {header.file_size} bytes, its header speaks of "
            f"{header.expected_size}"
        )
    count = header.integer("split.count") or 1
    if file.role in _WEIGHTS and count != parts:
        raise DownloadError(
            f"{file.told}: it is one of {count} parts of a model, {parts} were named: parts are found by names that "
            "end in -00001-of-00003.gguf and so on"
        )
