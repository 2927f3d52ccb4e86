"""`forerun bench profile`: where the time of steps goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.table import Table

from forerun.bench.client import Client
from forerun.bench.launching import RunningServer, free_port
from forerun.bench.peers import Setup, launch_of
from forerun.bench.steps import PARTS, Rows, Share, Step, shares, write_chrome_trace
from forerun.bench.workloads.registry import parse_workloads
from forerun.engine.recording import Arrival, Cancel, Line, Plan, Result, Session, read_recording
from forerun.errors import BenchmarkError
from forerun.models.resolve import resolve_model

_LEAST_SHARE: Final = 0.0005
_WIDTH: Final = 132


def profile_recording(path: Path, chrome: Path | None) -> None:
    """Show what a recording says. Raises ForerunError for what is none."""
    steps = list(recorded_steps(read_recording(path)))
    if not steps:
        raise BenchmarkError(f"{path}: nothing was evaluated while it was recorded: send a request, then look again")
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH)  # a narrow terminal wraps lines, which reads better than cut words
    console.print(_table(shares(steps)))
    if chrome is not None:
        with chrome.open("w", encoding="utf-8") as file:
            write_chrome_trace(steps, file)
        typer.echo(f"{len(steps)} steps are in {chrome}: open it in chrome://tracing or ui.perfetto.dev", err=True)


def record_workloads(model: str, workloads: Sequence[str], setup: Setup, folder: Path) -> Path:
    """Run workloads on a Forerun of their own that is recorded; returns the recording."""
    recording = folder / "recording.jsonl"
    wanted = parse_workloads(workloads or ["single"], 1.0)
    setup = replace(setup, model=resolve_model(model).absolute())
    port = free_port()
    launch = launch_of("forerun", setup, port, folder)
    launch = replace(launch, command=(*launch.command, "--record", str(recording)))

    async def run(server: RunningServer) -> None:
        await server.ready()
        for seed, workload in enumerate(wanted):
            await workload.run(Client(server.target), seed)

    server = RunningServer(launch, port, folder / "forerun.log")
    try:
        asyncio.run(run(server))
    finally:
        server.close()
    return recording


def recorded_steps(lines: Iterable[Line]) -> Iterator[Step]:
    """The steps of a recording that were carried out, each with what came between it and the next."""
    plan: Plan | None = None
    last: Step | None = None
    is_open = Open()
    for line in lines:
        is_open.learn(line)
        match line:
            case Session():
                if last is not None:
                    yield last
                plan = last = None
            case Plan():
                if last is not None:
                    yield _followed(last, line.now) if is_open.before_plan else last
                plan, last = line, None
            case Result() if plan is not None:
                last = _step(plan, line)
                plan = None
    if last is not None:
        yield last


class Open:
    """Which requests of a recording are open, and whether any was when the last step had ended."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self.before_plan = False
        """Whether a request was open all the time since the last result."""

    def learn(self, line: Line) -> None:
        match line:
            case Session():
                self._numbers.clear()
            case Arrival(number=number):
                self._numbers.add(number)
            case Cancel(number=number):
                self._numbers.discard(number)
            case Result(ended=ended):
                self._numbers.difference_update(number for number, _ in ended)
                self.before_plan = bool(self._numbers)


def _step(plan: Plan, line: Result) -> Step:
    result, times = line.result, line.result.times
    return Step(
        at=plan.now,
        rows=Rows(*plan.rows),
        schedule=plan.took,
        elapsed=result.elapsed,
        target=times.target,
        draft=times.draft,
        storing=times.storing,
        restoring=times.restoring,
        update=line.took,
    )


def _followed(step: Step, now: float) -> Step:
    return replace(step, between=max(now - step.at - step.seconds, 0.0))


def _table(found: Sequence[Share]) -> Table:
    title = f"{found[-1].steps} steps, {found[-1].seconds:.1f} s; shares of each kind's time"
    table = Table(title=title, title_justify="left")
    table.add_column("steps of", no_wrap=True)
    for heading in ("steps", "median, ms", *PARTS):
        table.add_column(heading, justify="right", no_wrap=True)
    for share in found:
        parts = [f"{part:.1%}" if part >= _LEAST_SHARE else "" for part in share.parts.values()]
        table.add_row(share.kind, f"{share.steps:,}", f"{share.median_ms:.2f}", *parts)
    return table
