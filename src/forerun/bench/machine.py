"""What figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Final

_CPUINFO: Final = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """The processor, its cores, and how busy it was just now (load average of a minute)."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "load_before": load, "python": platform.python_version()}


def cpu_model() -> str:
    """Its name, as the system tells it."""
    for line in _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
