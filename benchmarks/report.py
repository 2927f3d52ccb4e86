"""Result files: what was measured, on which machine, with which versions."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float
    runs: int

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g} to {self.high:.4g}, {self.runs} runs)"


def spread(values: Sequence[float]) -> Spread:
    low, median, high = statistics.quantiles(values, n=4)
    return Spread(median, low, high, len(values))


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, cwd=RESULTS.parent
    )
    return git.stdout.strip()


def save(name: str, figures: dict[str, object]) -> Path:
    """Write one benchmark's figures beside what they were measured with."""
    content = {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]},
        "versions": {"python": platform.python_version(), "forerun": _commit()}
        | {package: version(package) for package in ("llama-cpp-python", "numpy")},
        "figures": {key: asdict(value) if isinstance(value, Spread) else value for key, value in figures.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def show(title: str, figures: dict[str, object]) -> None:
    sys.stdout.write(f"\n{title}\n" + "".join(f"  {key:<58} {value}\n" for key, value in figures.items()))
    sys.stdout.flush()
