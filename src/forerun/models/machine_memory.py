"""How much memory this process may still take: what the machine has free, or what its control groups leave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
_CACHE_SHARE: Final = 4
_MOST_CACHE: Final = 8 * 2**30
_UNTOLD_CACHE: Final = 2**28
_LEAST_CACHE: Final = 2**24
_UNLIMITED: Final = 2**60  # version 1 says 2**63 less a page where there is no limit


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that can be had without swapping. `where`: whose limit that is."""

    free: int
    where: str


def free_memory(root: Path = _ROOT) -> FreeMemory | None:
    """What is left to this process; None where the system does not tell (anything but Linux).

    MemAvailable (kernel documentation, filesystems/proc: free pages and what can be reclaimed of caches), or less
    where a control group, ours or one above it, has a limit: limit less usage, its page cache not counted as used.
    """
    bounds = [*_machine(root), *_groups(root)]
    return min(bounds, key=lambda bound: bound.free, default=None)


def default_cache_ram(free: FreeMemory | None, needed: int = 0) -> int:
    """Bytes of host memory for cached prefixes where the user does not say.

    1/4 of what is free once models and contexts have `needed` of it, 16 MiB to 8 GiB; 256 MiB where nobody tells.
    """
    if free is None:
        return _UNTOLD_CACHE
    return min(_MOST_CACHE, max(_LEAST_CACHE, (free.free - needed) // _CACHE_SHARE))


def _machine(root: Path) -> Iterator[FreeMemory]:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield FreeMemory(int(value.split()[0]) * 1024, "this machine")


def _groups(root: Path) -> Iterator[FreeMemory]:
    """The limits of our memory control groups, version 2 and 1, from our own to the topmost."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            mount, files = root / "sys/fs/cgroup", ("memory.max", "memory.current", ("inactive_file", "active_file"))
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
        else:
            continue
        parts = [part for part in name.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield from _group(mount.joinpath(*parts[:depth]), *files)


def _group(folder: Path, limit_file: str, usage_file: str, cached: tuple[str, ...]) -> Iterator[FreeMemory]:
    limit, usage = _number(folder / limit_file), _number(folder / usage_file)
    if limit is None or usage is None or limit >= _UNLIMITED:
        return
    statistics = dict(line.split(maxsplit=1) for line in _lines(folder / "memory.stat") if " " in line)
    cache = sum(int(statistics.get(name, 0)) for name in cached)
    yield FreeMemory(max(0, limit - max(0, usage - cache)), "this control group (container)")


def _number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
