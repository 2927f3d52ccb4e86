"""What a server takes of its machine, and putting it to sleep: all processes of its tree, by proc(5). Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = 11, 12, 13, 14
"""Fields of /proc/PID/stat, counted from behind the program's name."""
_PARENT: Final = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """Of all processes of a tree together."""

    cpu_seconds: float
    """User and system time since they started, children that have ended included."""
    resident_bytes: int
    """Pages that two of them share count twice, files that they map count too."""


class ProcessTree:
    """A process and all that it started, found anew each time."""

    def __init__(self, root: int) -> None:
        self.root = root

    def __repr__(self) -> str:
        return f"ProcessTree({self.root})"

    def taken(self) -> Taken | None:
        """None where this system has no /proc, or the process has gone."""
        cpu, resident = 0.0, 0
        found = self.pids()
        for pid in found:
            with contextlib.suppress(OSError, ValueError):
                cpu += _cpu_seconds(pid)
                resident += _resident(pid)
        return Taken(cpu, resident) if found else None

    def stop(self) -> None:
        """Take all CPU time away from it (SIGSTOP) until `go_on`. The root first, so that nobody starts others."""
        self._send(signal.SIGSTOP, self.pids())

    def go_on(self) -> None:
        self._send(signal.SIGCONT, reversed(self.pids()))

    def pids(self) -> list[int]:
        """The root first, then who it started, and who they started."""
        try:
            parents = dict(_parents())
        except OSError:
            return []
        found = [self.root] if self.root in parents else []
        for parent in found:  # grows while it is walked
            found.extend(pid for pid, own in parents.items() if own == parent)
        return found

    def _send(self, which: signal.Signals, pids: Iterator[int] | list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                yield int(entry), int(_stat(int(entry))[_PARENT])


def _stat(pid: int) -> list[str]:
    """Fields from behind the name, which may hold anything."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    ticks = sum(int(fields[at]) for at in (_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM))
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
