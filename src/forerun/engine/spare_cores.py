"""How many threads a step is computed with while other programs use the cores.

The threads of one decode wait for each other many times a token. Where another program holds the core of one of them,
all of them stand still until it gets its turn: two threads on two cores, one of which is busy, take more than twice as
long as one thread (decision 38). So a thread is given up for every core that others use, and taken back when they end.

What the front end of this engine uses is no other program's: it works while tokens come, and a thread less would not
make room for it.

Linux tells what all programs used (/proc/stat); elsewhere, and in containers that hide it, threads stay as they are.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.engine.cores import physical_cores, usable_cpus

logger = logging.getLogger(__name__)

_PROC: Final = Path("/proc")
_EVERY: Final = 0.25
"""Seconds between two looks; the system counts in hundredths."""
_GIVEN_UP_ABOVE: Final = 0.6
"""Others use so much of a core: its thread would be in their way, and they in its."""
_TAKEN_BACK_BELOW: Final = 0.45
_MANY_ROWS: Final = 64
"""Of a step: threads wait for each other so seldom then that fewer are never faster, and alone much slower."""
_PAUSE: Final = 1.0
"""Seconds after which what others used meanwhile says nothing of now, if this process computed next to nothing."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds. `at`: of a clock that never goes back; the others since whenever."""

    at: float
    all_programs: float
    """Of all programs, without those that yield to others (nice)."""
    own: float
    """Of this process and its front end, all threads."""


class SpareCores:
    """Says how many of `threads` threads to compute with, on `cores` cores. Used by one thread."""

    def __init__(
        self, threads: int, cores: int, read: Callable[[], CpuTimes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`read`: what was used until now, by `clock`. Raises what it raises, here only."""
        self._most = threads
        self._cores = max(cores, threads)
        self._read, self._clock = read, clock
        self._last = read()
        self._now = self._wanted = threads

    def threads(self, rows: int) -> int:
        """How many to use for a step of so many rows. Looks at the system a few times a second, however often it is
        asked."""
        if self._clock() - self._last.at >= _EVERY:
            self._look()
        return self._most if rows >= _MANY_ROWS else self._now

    def _look(self) -> None:
        try:
            times = self._read()
        except (OSError, ValueError):
            return
        last, self._last = self._last, times
        seconds, own = max(times.at - last.at, _EVERY), times.own - last.own
        if seconds > _PAUSE and own < seconds / 4:
            self._now = self._wanted = self._most
            return
        used = max(0.0, times.all_programs - last.all_programs - own) / seconds
        # Two looks in a row: what is gone in a moment costs less than a step of several rows with a thread less.
        before, self._wanted = self._wanted, threads_beside(used, self._now, self._most, self._cores)
        threads = max(before, self._wanted)
        if threads != self._now:
            logger.info("computing with %d of %d threads: other programs use %.1f cores", threads, self._most, used)
        self._now = threads


def threads_beside(used: float, now: int, most: int, cores: int) -> int:
    """Threads to compute with while others use so many of `cores` cores; at least one, at most `most`. `now`: with how
    many until now: between two bounds it stays at that."""
    fewer = math.floor(cores - used + _GIVEN_UP_ABOVE)
    more = math.floor(cores - used + _TAKEN_BACK_BELOW)
    return max(1, min(most, fewer, max(now, more)))


def spare_cores(threads: int, front_end: int | None = None) -> SpareCores | None:
    """For `threads` threads on this machine; None where it does not tell, or there is nothing to give up. `front_end`:
    the process that asks this one for tokens, if it is another one."""
    cpus = usable_cpus()
    physical = physical_cores()
    cores = physical if threads <= physical else len(cpus)
    if threads < 2 or not (_PROC / "stat").exists():
        return None
    try:
        return SpareCores(threads, cores, lambda: read_cpu_times(cpus, front_end))
    except (OSError, ValueError):
        return None


def read_cpu_times(cpus: Collection[int], front_end: int | None = None, proc: Path = _PROC) -> CpuTimes:
    """What was used of these CPUs. Formats: proc_stat(5), proc_pid_stat(5). Raises OSError, and ValueError for anything
    else."""
    names = {f"cpu{cpu}" for cpu in cpus}
    counts_nice = os.nice(0) > 0
    ticks = 0
    with (proc / "stat").open(encoding="ascii") as lines:
        for line in lines:
            name, *values = line.split()
            if not name.startswith("cpu"):
                break
            if name in names:
                ticks += _busy(values, counts_nice=counts_nice)
    per_second = os.sysconf("SC_CLK_TCK")
    own = time.process_time()
    if front_end is not None:
        own += _used_by(proc / str(front_end) / "stat") / per_second
    return CpuTimes(time.monotonic(), ticks / per_second, own)


def _busy(values: list[str], *, counts_nice: bool) -> int:
    """Clock ticks: user, system, irq, softirq; and nice where this process is so too, and does not come first."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, values[:7])
    return user + system + irq + softirq + (nice if counts_nice else 0)


def _used_by(stat: Path) -> int:
    """Clock ticks of a process."""
    _, _, fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")  # its name may hold anything
    user, system = fields.split()[11:13]
    return int(user) + int(system)
