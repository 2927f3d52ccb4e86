"""How long and how often a download tries, and how much room it needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forerun.errors import DownloadError
from forerun.models.findings import size

RESERVE: Final = 256 * 2**20
"""Bytes of the disk that a download leaves free."""

TransferProgress = Callable[[str, int, int], None]
"""Told a file's name, the bytes of it that are here, and the bytes it has."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When a connection is given up, and when a file is. Times in seconds."""

    connect: float = 15.0
    stall: float = 30.0
    """Without a byte for so long, a connection counts as cut."""
    attempts: int = 6
    """In a row that brought less than `progress` bytes."""
    progress: int = 2**20
    first_wait: float = 0.5
    """After the first failure; twice as long after each further one."""
    longest_wait: float = 30.0

    def wait(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return min(self.longest_wait, self.first_wait * float(2 ** min(failures - 1, 16)))


@dataclass(slots=True)
class Space:
    """What a pull may still write below a folder: every file claims its bytes before the first is written."""

    folder: Path
    free: int
    """Bytes, less what is left free."""
    reserve: int = RESERVE
    claimed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, reserve: int = RESERVE) -> Space:
        """What the folder's disk has free, less `reserve`."""
        return cls(folder, shutil.disk_usage(folder).free - reserve, reserve)

    def claim(self, missing: Mapping[str, int]) -> None:
        """Claim room for these files, by name, in bytes that are still to come; once for each.

        Raises DownloadError where there is not so much.
        """
        claimed = {**missing, **self.claimed}
        needed = sum(claimed.values())
        if needed > self.free:
            raise DownloadError(
                f"{', '.join(missing)}: {size(needed)} are still to be written, and the disk of {self.folder} has "
                f"room for {size(max(0, self.free))} ({size(self.reserve)} are left free): make room, or name another "
                "folder in FORERUN_MODELS"
            )
        self.claimed = claimed
