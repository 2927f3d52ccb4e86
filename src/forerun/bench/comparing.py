"""Runs workloads on servers, round by round, in turns: A B, B A, A B, ...

Each round asks every server the same, which no earlier round asked, and nobody else is awake while one is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from forerun.bench.client import Client, Target
from forerun.bench.launching import RunningServer, free_port
from forerun.bench.machine import machine
from forerun.bench.measuring import figures_of, work_of
from forerun.bench.peers import Setup, launch_of
from forerun.bench.results import Comparison, Round, SystemResult, WorkloadResult, write_results
from forerun.bench.workloads.workload import Workload
from forerun.errors import BenchmarkError

_SEEDS_APART: Final = 1000
Progress = Callable[[str], None]
"""Is told what is being done, a line each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, and where results go."""

    workloads: Sequence[Workload]
    rounds: int
    seed: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Side:
    """A server, and what wakes it up for as long as it is asked."""

    target: Target
    awake: AbstractContextManager[object]
    told: SystemResult


async def compare(systems: Sequence[str], setup: Setup, plan: Plan, progress: Progress) -> Comparison:
    """Start servers, measure, and end them. Raises BenchmarkError where one does not start."""
    logs = plan.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    sides: list[Side] = []
    with ExitStack() as running:
        for system in systems:
            port = free_port()
            launch = launch_of(system, setup, port, logs)
            progress(f"starting {launch.name}")
            server = RunningServer(launch, port, logs / f"{launch.name.replace('/', '-').replace(':', '-')}.log")
            running.callback(server.close)
            with server:
                told = server.told(await server.ready())
            sides.append(Side(server.target, server, told))
        settings = _settings(plan) | {
            "model": setup.model.name,
            "draft": setup.draft.name if setup.draft else "",
            "n_ctx": setup.n_ctx,
            "sequences": setup.sequences,
            "threads": setup.threads,
        }
        return await measure(sides, plan, settings, progress)


async def measure(sides: Sequence[Side], plan: Plan, settings: Mapping[str, Any], progress: Progress) -> Comparison:
    """Measure servers that run. What is known so far is written after each workload."""
    found = Comparison(machine(), settings, tuple(side.told for side in sides))
    for workload in plan.workloads:
        result = await _workload(workload, sides, plan, progress)
        found = replace(found, workloads=(*found.workloads, result))
        await asyncio.to_thread(write_results, plan.folder, found)
    return found


async def _workload(workload: Workload, sides: Sequence[Side], plan: Plan, progress: Progress) -> WorkloadResult:
    rounds: list[dict[str, Round]] = []
    errors: dict[str, str] = {}
    for number in range(plan.rounds):
        done: dict[str, Round] = {}
        for side in sides if number % 2 == 0 else reversed(sides):
            name = side.target.name
            if name in errors:
                continue
            progress(f"{workload}, round {number + 1} of {plan.rounds}: {name}")
            try:
                with side.awake:
                    done[name] = await _round(workload, side.target, plan.seed * _SEEDS_APART + number)
            except (BenchmarkError, ExceptionGroup) as error:
                errors[name] = _reason(error)
                progress(f"{name}: {errors[name]}")
        rounds.append(done)
    return WorkloadResult(
        workload.name,
        workload.sizes,
        workload.about,
        workload.primary,
        workload.shown,
        workload.feeds_back,
        tuple(rounds),
        errors,
    )


async def _round(workload: Workload, target: Target, seed: int) -> Round:
    client = Client(target)
    await workload.run(client, seed)
    measured = client.take()
    return Round(figures_of(measured), work_of(measured))


def _reason(error: BenchmarkError | ExceptionGroup[Exception]) -> str:
    """Of several answers that failed together, the first one's. Raises what is no BenchmarkError."""
    while isinstance(error, ExceptionGroup):
        first = error.exceptions[0]
        if not isinstance(first, BenchmarkError | ExceptionGroup):
            raise error
        error = first
    return str(error)


def _settings(plan: Plan) -> dict[str, Any]:
    return {"rounds": plan.rounds, "seed": plan.seed}
