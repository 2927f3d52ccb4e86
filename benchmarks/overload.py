"""64 simulated users who ask for half, once and twice of what the engine can give (docs/simulation.md).

On two machines: SmolLM2 on two cores, as measured, and one where rows come cheaper together, as on a GPU.

Virtual time: the figures are the same on every machine, and nothing else needs to be quiet.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Figures
from forerun.simulation.loads import run_alone, study
from forerun.simulation.outcome import GroupOutcome
from forerun.simulation.workload import read_workload

_WORKLOADS = Path(__file__).parent / "workloads"
_LOADS = (0.5, 1.0, 2.0)


def two_cores() -> Figures:
    return _figures_of("overload-two-cores")


def gpu() -> Figures:
    return _figures_of("overload-gpu")


def _figures_of(name: str) -> Figures:
    """Of each load and group of users; the first group is in a hurry."""
    workload = read_workload(_WORKLOADS / f"{name}.toml")
    found = study(workload, _LOADS)
    overload = found.outcomes[-1].outcome
    hurried = workload.groups[0].name
    calm = run_alone(workload, hurried, _LOADS[-1] * found.capacity / workload.offered)
    return {
        "workload": f"benchmarks/workloads/{name}.toml",
        "users": workload.users,
        "capacity_tokens_per_second": found.capacity,
        "goodput_of_capacity_at_2": overload.goodput / found.capacity,
        "hurried_ttft_p95_alone_s": calm.group(hurried).ttft.p95,
        "hurried_ttft_p95_against_alone": overload.group(hurried).ttft.p95 / calm.group(hurried).ttft.p95,
        "unanswered": sum(group.requests - group.finished for group in overload.groups),
        "parked_at_2": overload.parked,
        "settings": {
            f"load {one.load:g}, {group.name}": _figures(group)
            for one in found.outcomes
            for group in one.outcome.groups
        },
    }


def _figures(group: GroupOutcome) -> Figures:
    return {
        "requests": group.requests,
        "finished": group.finished,
        "ttft_p50_s": group.ttft.p50,
        "ttft_p95_s": group.ttft.p95,
        "ttft_longest_s": group.ttft.most,
        "itl_p50_ms": group.itl.p50 * 1e3,
        "itl_p95_ms": group.itl.p95 * 1e3,
        "itl_longest_ms": group.itl.most * 1e3,
        "cached_share": group.hit_share,
        "tokens_per_second": group.tokens_per_second,
        "least_served": group.least_served,
    }
