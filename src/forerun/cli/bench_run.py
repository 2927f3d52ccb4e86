"""`forerun bench`: workloads on servers that run, or that are started for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import typer

from forerun.bench.client import Client, Target
from forerun.bench.comparing import Plan, Side, compare, measure
from forerun.bench.http import Address
from forerun.bench.peers import Setup
from forerun.bench.processes import ProcessTree
from forerun.bench.results import Comparison, SystemResult
from forerun.bench.workloads.registry import WORKLOADS, parse_workloads
from forerun.cli.bench_report import write_report
from forerun.errors import BenchmarkError
from forerun.models.resolve import resolve_model
from forerun.offline import prompt_reader

_KEYS: Final = ("FORERUN_API_KEY", "OPENAI_API_KEY")
_URL_NAME: Final = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured, and where results go."""

    workloads: list[str]
    scale: float
    rounds: int
    seed: int
    output: Path | None

    def plan(self) -> Plan:
        """Raises BenchmarkError."""
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        folder = self.output or Path(f"bench-{now}")
        return Plan(parse_workloads(self.workloads, self.scale), self.rounds, self.seed, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Servers that are asked where they are."""

    urls: list[str]
    model: str | None
    pid: int | None
    body: str | None
    fields: Mapping[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.body is None:
            return
        try:
            fields = json.loads(self.body)
        except ValueError as error:
            raise BenchmarkError(f"--body: must be a JSON object, got {self.body!r}: {error}") from error
        if not isinstance(fields, dict):
            raise BenchmarkError(f"--body: must be a JSON object, got {self.body!r}")
        object.__setattr__(self, "fields", fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Servers that are started."""

    systems: str
    model: str | None
    draft: str | None
    n_ctx: int
    sequences: int
    threads: int
    peers: Path | None
    llama_server: Path | None

    def setup(self) -> Setup:
        """Raises BenchmarkError, ModelError."""
        if self.model is None:
            raise BenchmarkError("--model: name the model that all servers load")
        with prompt_reader(self.model) as reader:
            end_tokens = tuple(sorted(reader.vocabulary.end_tokens))
        return Setup(
            model=resolve_model(self.model).absolute(),
            draft=None if self.draft is None else resolve_model(self.draft).absolute(),
            n_ctx=self.n_ctx,
            sequences=self.sequences,
            threads=self.threads,
            peers=self.peers,
            llama_server=self.llama_server,
            end_tokens=end_tokens,
        )


def bench_running(servers: Running, options: BenchOptions) -> None:
    """Measure servers that run already; several are compared."""
    plan = options.plan()
    _finish(asyncio.run(_until_told_to_end(_measure_running(servers, plan))), plan)


def bench_started(servers: Started, options: BenchOptions) -> None:
    """Start servers, measure them in turns, and end them."""
    plan, setup = options.plan(), servers.setup()
    systems = [name.strip() for name in servers.systems.split(",") if name.strip()]
    if len(set(systems)) != len(systems):
        raise BenchmarkError(f"--compare: a server is named twice: {servers.systems}")
    _finish(asyncio.run(_until_told_to_end(compare(systems, setup, plan, _say))), plan)


async def _until_told_to_end(run: Coroutine[Any, Any, Comparison]) -> Comparison:
    """SIGTERM ends it as Ctrl-C does: servers that were started, and sleep, must not stay."""
    task = asyncio.create_task(run)
    with contextlib.suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error


def list_workloads() -> None:
    """All there are, with their sizes, on standard output."""
    for kind in WORKLOADS.values():
        workload = kind()
        typer.echo(f"{workload}\n    {kind.about}\n    primary figure: {kind.primary}")


async def _measure_running(servers: Running, plan: Plan) -> Comparison:
    sides: list[Side] = []
    for text in servers.urls:
        # `name=http://...` names a server, for one among several.
        name, _, url = text.rpartition("=") if "=" in text.split("://", 1)[0] else ("", "", text)
        process = None if servers.pid is None else ProcessTree(servers.pid)
        key = next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
        target = Target(name or _URL_NAME, Address.parse(url), servers.model or "", key, servers.fields, process)
        if not target.model:
            target = Target(target.name, target.address, await _only_model(target), key, servers.fields, process)
        sides.append(Side(target, contextlib.nullcontext(), SystemResult(target.name)))
    names = [side.target.name for side in sides]
    if len(set(names)) != len(names):
        raise BenchmarkError(
            "--url: give each of several servers a name of its own: --url a=http://... --url b=http://..."
        )
    settings = {"rounds": plan.rounds, "seed": plan.seed, "model": sides[0].target.model}
    return await measure(sides, plan, settings, _say)


async def _only_model(target: Target) -> str:
    """What the server has, where that is one model. Raises BenchmarkError."""
    try:
        listed = json.loads(await Client(target).get("/v1/models"))["data"]
        names = [str(one["id"]) for one in listed]
    except (ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"{target.address} does not list its models: say --model NAME") from error
    if not names:
        raise BenchmarkError(f"{target.address} has no model: say --model NAME")
    return names[0]


def _finish(found: Comparison, plan: Plan) -> None:
    write_report(plan.folder, found)
    typer.echo((plan.folder / "report.md").read_text(encoding="utf-8"))
    _say(f"results, plots and a page are in {plan.folder}")


def _say(line: str) -> None:
    typer.echo(line, err=True)
