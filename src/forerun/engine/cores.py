"""How many CPU cores this process really has."""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores(topology: Path = _TOPOLOGY) -> int:
    """Physical cores this process may run on: llama.cpp gains nothing from a second thread on a core.

    Reads Linux's topology files; elsewhere, or where they tell nothing, every CPU counts.
    """
    cpus = usable_cpus()
    cores = {core for cpu in cpus if (core := _core_of(topology / f"cpu{cpu}" / "topology")) is not None}
    return len(cores) or len(cpus)


def machine_load() -> float:
    """How many cores were busy in the last minute, all programs together; 0 where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def usable_cpus() -> set[int]:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _core_of(topology: Path) -> tuple[str, str] | None:
    try:
        return (topology / "physical_package_id").read_text(), (topology / "core_id").read_text()
    except OSError:
        return None
