"""`forerun simulate`: what a crowd of users would see, as a table, a drawing and figures."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from forerun.cli.simulation_plot import study_plot
from forerun.cli.terminal import Terminal
from forerun.errors import InvalidConfigError
from forerun.simulation.loads import LoadOutcome, Study, study
from forerun.simulation.outcome import GroupOutcome, Percentiles
from forerun.simulation.workload import Workload, read_workload

_MOST_LOADS: Final = 50


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    loads: str | None
    costs: Path | None
    seed: int | None
    plot: Path | None
    output: Path | None
    """Where the figures go as JSON."""


def simulate_workload(path: Path, options: SimulateOptions) -> None:
    """Run a workload at each load and print a table; draw it where a file is named for that."""
    if options.plot is not None and options.plot.suffix.lower() != ".svg":
        raise typer.BadParameter(f"plots are SVG files: name it {options.plot.stem}.svg, got {options.plot.name!r}")
    loads = parse_loads(options.loads) if options.loads is not None else []
    workload = read_workload(path, options.costs, options.seed)
    terminal = Terminal(verbose=False)
    with terminal.waiting("simulating"):
        found = study(workload, loads)
    console = Console(highlight=False)
    console.print(study_table(workload, found))
    for one in found.outcomes:
        console.print(summary(one, found.capacity))
    if options.output is not None:
        options.output.write_text(json.dumps(as_json(workload, found), indent=2) + "\n", encoding="utf-8")
    if options.plot is not None:
        options.plot.write_text(study_plot(found), encoding="utf-8")
        terminal.note(f"drawn: {options.plot}")


def parse_loads(text: str) -> list[float]:
    """Multiples of the capacity, separated by commas, in ascending order. Raises InvalidConfigError."""
    loads: list[float] = []
    for part in text.split(","):
        try:
            load = float(part)
        except ValueError:
            raise InvalidConfigError("--load", f"holds numbers such as 0.5,1,2, got {part.strip()!r}") from None
        if not (math.isfinite(load) and 0.001 <= load <= 1000):
            raise InvalidConfigError("--load", f"must lie between 0.001 and 1000, got {part.strip()}")
        loads.append(load)
    if len(loads) > _MOST_LOADS:
        raise InvalidConfigError("--load", f"takes at most {_MOST_LOADS} loads, got {len(loads)}")
    return sorted(set(loads))


def study_table(workload: Workload, found: Study) -> Table:
    """A row for each load and group of users."""
    table = Table(
        title=f"{workload.users:,} users, {workload.seconds:g} s; the engine gives {found.capacity:,.1f} tok/s at most",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("load", justify="right")
    table.add_column("users")
    for heading in ("asked", "first token, s\np50 / p95 / most", "token to token, ms\np50 / p95 / most"):
        table.add_column(heading, justify="right")
    for heading in ("cached", "tok/s", "least\nserved"):
        table.add_column(heading, justify="right")
    for one in found.outcomes:
        for index, group in enumerate(one.outcome.groups):
            table.add_row("" if index else f"{one.load:.3g}", *_cells(group))
    return table


def _cells(group: GroupOutcome) -> list[str]:
    return [
        group.name,
        f"{group.requests:,}",
        _three(group.ttft),
        _three(group.itl, 1e3),
        f"{group.hit_share:.0%}",
        f"{group.tokens_per_second:,.1f}",
        f"{group.least_served:.0%}",
    ]


def _three(own: Percentiles, scale: float = 1.0) -> str:
    return " / ".join(_number(seconds * scale) for seconds in (own.p50, own.p95, own.most))


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def summary(one: LoadOutcome, capacity: float) -> str:
    """A line about a run as a whole."""
    outcome = one.outcome
    told = [
        f"load {one.load:.3g}: {outcome.goodput:,.1f} tok/s of finished answers ({outcome.goodput / capacity:.0%})",
        f"parked {outcome.parked:,} times",
        f"{outcome.evicted:,} idle prefixes left the pool",
        f"{outcome.rows_per_step:.1f} rows a step",
    ]
    for word, count in (
        ("refused", sum(group.refused for group in outcome.groups)),
        ("given up", sum(group.gave_up for group in outcome.groups)),
        ("failed", sum(group.failed for group in outcome.groups)),
    ):
        told += [f"{count:,} requests {word}"] if count else []
    return ", ".join(told)


def as_json(workload: Workload, found: Study) -> dict[str, Any]:
    """The figures, times in seconds."""
    return {
        "users": workload.users,
        "seconds": workload.seconds,
        "seed": workload.seed,
        "capacity_tokens_per_second": found.capacity,
        "loads": [{"load": one.load, **one.outcome.as_json()} for one in found.outcomes],
    }
