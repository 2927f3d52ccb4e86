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
from typing import Any, TypeAlias

Figures: TypeAlias = dict[str, Any]
"""What one benchmark measured: names to numbers, spreads and texts; "settings" holds such a dict for each setting."""

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
    """Raises ValueError where nothing was measured."""
    if not values:
        raise ValueError("no measurements")
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
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


def save(name: str, figures: Figures) -> Path:
    """Write one benchmark's figures beside what they were measured with."""
    content = {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]},
        "versions": {"python": platform.python_version(), "forerun": _commit()}
        | {package: version(package) for package in ("llama-cpp-python", "numpy")},
        "figures": _plain(figures),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _plain(value: object) -> object:
    if isinstance(value, Spread):
        return asdict(value)
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def show(title: str, figures: Figures) -> None:
    """Print figures as lines, and those of several settings as a table."""
    single = {key: value for key, value in figures.items() if key != "settings"}
    sys.stdout.write(f"\n{title}\n" + "".join(f"  {key:<58} {_short(value)}\n" for key, value in single.items()))
    if "settings" in figures:
        _show_table(figures["settings"])
    sys.stdout.flush()


def _show_table(settings: dict[str, Figures]) -> None:
    columns = list(next(iter(settings.values())))
    rows = [["", *(column.replace("_", " ") for column in columns)]]
    rows += [[name, *(_short(own[column]) for column in columns)] for name, own in settings.items()]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + "\n")


def _short(value: object) -> str:
    if isinstance(value, Spread):
        return f"{value.median:.4g} ({value.low:.4g} to {value.high:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
