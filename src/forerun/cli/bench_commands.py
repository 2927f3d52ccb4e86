"""`forerun bench`: its commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.endings import ends_well
from forerun.core.recompute import RecomputeCost

bench_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

_COST = RecomputeCost()
_CACHE_SIM_EXAMPLES = """
Examples:

    forerun bench cache-sim trace.jsonl.gz

    forerun bench cache-sim trace.jsonl.gz --budget 100% --budget 2GiB --policy value,lru --output figures.json
"""


@bench_app.callback()
def bench_command() -> None:
    """Measure and simulate what engines are tuned by."""


@bench_app.command("cache-sim", epilog=_CACHE_SIM_EXAMPLES)
@ends_well
def cache_sim(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", exists=True, dir_okay=False, help="Recorded requests.")],
    *,
    budget: Annotated[
        list[str], typer.Option(help="Of the tier: bytes (500MB, 2GiB), or a share of what holds everything.")
    ] = ["100%", "75%", "50%", "25%"],  # noqa: B006 (typer wants a list)
    policy: Annotated[
        str, typer.Option(help="What goes first when it is full; several with commas.")
    ] = "value,lru,fifo",
    ms_per_token: Annotated[float, typer.Option(min=0.0, help="Prefill of a token.")] = _COST.ms_per_token,
    ms_per_kilotoken: Annotated[
        float, typer.Option(min=0.0, help="What it costs more for every 1,000 tokens before it.")
    ] = _COST.ms_per_token_kilocell,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", dir_okay=False, help="Write the figures here as well.")
    ] = None,
) -> None:
    """Replay recorded requests on the prefix cache alone: what each way of making room hits, and what that saves.

    Needs no model. The format of traces is described in forerun/bench/trace.py; of recorded coding-agent sessions
    `python -m benchmarks.agent_sessions FILE` makes one.
    """
    from forerun.cli.cache_sim import SimulationOptions, parse_policies, simulate_cache

    cost = RecomputeCost(ms_per_token, ms_per_kilotoken)
    simulate_cache(trace, SimulationOptions(budget, parse_policies(policy), cost, output))
