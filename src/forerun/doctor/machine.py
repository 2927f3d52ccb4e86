"""What the machine is: processor, cores, memory, disks. Linux tells most of it; elsewhere less is known."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.engine.cores import machine_load, physical_cores, usable_cpus
from forerun.models.machine_memory import FreeMemory, free_memory

_ROOT: Final = Path("/")
_GPU_FILES: Final = {
    "NVIDIA": "dev/nvidia[0-9]*",
    "AMD": "dev/kfd",
    "some": "dev/dri/renderD*",
}
"""Device files that the drivers make. The last one is made by any of them, an integrated GPU's too."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts, not judgements. Memory and disks in bytes."""

    system: str
    architecture: str
    processor: str
    """As it names itself; "" where it does not."""
    cpu_flags: frozenset[str]
    """Instruction sets in Linux's words: "avx2", "asimddp"."""
    cores: int
    """Physical cores that this process may use."""
    cpus: int
    """Logical ones."""
    quota: float | None
    """CPUs' worth of time that a control group grants; None without a limit."""
    load: float
    """Cores that were busy in the last minute."""
    memory: int | None
    free: FreeMemory | None
    swapped: int
    """Bytes that are on a swap disk."""
    governor: str | None
    """How the first core's frequency is chosen."""
    gpus: tuple[str, ...]
    """Makers whose drivers are here, whether the library uses them or not."""


def look_at_machine(root: Path = _ROOT) -> Machine:
    """Raises nothing: what cannot be found out is left open."""
    memory = _meminfo(root)
    processor, flags = _cpuinfo(root)
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    return Machine(
        system=f"{platform.system()} {platform.release()}".strip(),
        architecture=platform.machine(),
        processor=processor or platform.processor(),
        cpu_flags=flags,
        cores=physical_cores(),
        cpus=len(usable_cpus()),
        quota=min(_quotas(root), default=None),
        load=machine_load(),
        memory=memory.get("MemTotal"),
        free=free_memory(root),
        swapped=max(0, swapped),
        governor=_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        gpus=tuple(maker for maker, pattern in _GPU_FILES.items() if any(root.glob(pattern))),
    )


def free_on_disk(folder: Path) -> int | None:
    """Bytes that are free where a folder is, or would be; None where that cannot be found out."""
    existing = next((one for one in (folder, *folder.parents) if one.exists()), None)
    try:
        return None if existing is None else shutil.disk_usage(existing).free
    except OSError:
        return None


def can_be_written(folder: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself."""
    existing = next((one for one in (folder, *folder.parents) if one.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _cpuinfo(root: Path) -> tuple[str, frozenset[str]]:
    """Name and flags of the first processor; all of them are alike where models are run."""
    name, flags = "", frozenset[str]()
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name" and not name:
            name = value
        if key in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    return name, flags


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdecimal():
            found[name] = int(number[0]) * 1024
    return found


def _quotas(root: Path) -> Iterator[float]:
    """The limits of our CPU control groups, version 2 ("max 100000" or "150000 100000") and 1, ours and those above."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        parts = [part for part in name.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            if number == "0" and not controllers:
                words = _text(root.joinpath("sys/fs/cgroup", *parts[:depth], "cpu.max")).split()
            elif "cpu" in controllers.split(","):
                folder = root.joinpath("sys/fs/cgroup/cpu", *parts[:depth])
                words = [_text(folder / f"cpu.cfs_{one}_us").strip() for one in ("quota", "period")]
            else:
                continue
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
                yield int(words[0]) / int(words[1])


def _line(file: Path) -> str | None:
    return _text(file).strip() or None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
