"""`forerun bench`: its commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forerun.cli.endings import ends_well
from forerun.core.recompute import RecomputeCost
from forerun.errors import BenchmarkError

_FLAG = ""
_RUN = "run"


class _RunsByDefault(TyperGroup):
    """`forerun bench single` is `forerun bench run single`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named else [_RUN, *args])


bench_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", cls=_RunsByDefault)

_PROFILE_EXAMPLES = """
Examples:

    forerun bench profile --model smollm2 concurrent:streams=8

    forerun serve smollm2 --record trace.jsonl      (send requests, then)

    forerun bench profile trace.jsonl --chrome trace.json
"""


@bench_app.command("profile", epilog=_PROFILE_EXAMPLES)
@ends_well
def profile(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|WORKLOAD...",
            help="What `forerun serve --record` wrote; with --model what to ask a server that is started for it.",
            show_default=False,
        ),
    ] = None,
    *,
    model: Annotated[str | None, typer.Option(help="Start a server with this model, and record it.")] = None,
    n_ctx: Annotated[int, typer.Option("--n-ctx", min=256, help="Tokens of all its sequences.")] = 8192,
    sequences: Annotated[int, typer.Option(min=1, help="Requests that run at a time.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    chrome: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", dir_okay=False, help="Write all steps in Chrome's trace format as well."),
    ] = None,
) -> None:
    """Show where a step's time goes: deciding, drafting, decoding, copying, learning, and what lies between steps.

    Recording is part of what lies between.
    """
    import tempfile

    from forerun.bench.peers import Setup
    from forerun.cli.bench_profile import profile_recording, record_workloads

    if model is None:
        if not arguments or len(arguments) > 1:
            raise BenchmarkError("name one recording (`forerun serve --record FILE`), or a --model and workloads")
        profile_recording(Path(arguments[0]), chrome)
        return
    setup = Setup(Path(model), n_ctx=n_ctx, sequences=sequences, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        profile_recording(record_workloads(model, arguments or [], setup, Path(folder)), chrome)


_COST = RecomputeCost()
_CACHE_SIM_EXAMPLES = """
Examples:

    forerun bench cache-sim trace.jsonl.gz

    forerun bench cache-sim trace.jsonl.gz --budget 100% --budget 2GiB --policy value,lru --output figures.json
"""


@bench_app.callback()
def bench_command() -> None:
    """Measure servers, side by side; see where a step's time goes; simulate what the prefix cache is tuned by."""


_RUN_EXAMPLES = """
Examples:

    forerun bench --url http://127.0.0.1:8080 single prefill

    forerun bench --url ours=http://127.0.0.1:8080 --url theirs=http://127.0.0.1:8081 concurrent:streams=4,output=64

    forerun bench --compare llama-server,llama-cpp-python,forerun --peers ~/peers --model smollm2

    forerun bench --compare llama-server:ngram-simple,forerun:auto --llama-server ./llama-server --model smollm2 copy
"""


@bench_app.command(_RUN, epilog=_RUN_EXAMPLES)
@ends_well
def run(
    workload: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...",
            help="NAME, or NAME:SIZE=VALUE,... (--list has all). Default: what every server can do.",
            show_default=False,
        ),
    ] = None,
    *,
    url: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]URL", help="A server that runs; may be repeated, with names, to compare several."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Servers to start: llama-server, llama-server-wheel, llama-cpp-python, forerun, or with a variant "
            "such as forerun:off, llama-server:batch/128. The last one is compared with all others.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --compare a GGUF file or an id; with --url the name that the server knows.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="With --compare: a draft model, for servers that take one.")] = None,
    n_ctx: Annotated[int, typer.Option("--n-ctx", min=256, help="Tokens of all sequences of a started server.")] = 8192,
    sequences: Annotated[int, typer.Option(min=1, help="Requests that run at a time on a started server.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="Of a started server.")] = 2,
    peers: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, exists=True, help="What tools/build_llama_server.sh made."),
    ] = None,
    llama_server: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Another llama-server.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(min=1, help="With --url: the server's process here, for CPU and memory.")
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="With --url: fields for every request, for instance a logit_bias that bans end tokens where a server "
            "knows no ignore_eos.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each workload, servers in turns.")] = 5,
    scale: Annotated[float, typer.Option(min=0.001, help="All lengths in tokens, times this.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Other texts of the same kind.")] = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="Results, plots and page. Default: bench-DATE.")
    ] = None,
    shows_list: Annotated[bool, typer.Option("--list", metavar=_FLAG, help="Show all workloads, and end.")] = False,
) -> None:
    """Measure any OpenAI-compatible server, or start several and compare them.

    HTTP only. A ratio is given where both sides did the same work, and called a difference where it is beyond chance.
    Keys: FORERUN_API_KEY or OPENAI_API_KEY.
    """
    from forerun.cli import bench_run

    if shows_list:
        bench_run.list_workloads()
        return
    if (url is None) == (compare is None):
        raise BenchmarkError("say either --url, for servers that run, or --compare, for servers to start")
    options = bench_run.BenchOptions(workloads=workload or [], scale=scale, rounds=rounds, seed=seed, output=output)
    if url is not None:
        bench_run.bench_running(bench_run.Running(urls=url, model=model, pid=pid, body=body), options)
        return
    assert compare is not None
    bench_run.bench_started(
        bench_run.Started(
            systems=compare,
            model=model,
            draft=draft,
            n_ctx=n_ctx,
            sequences=sequences,
            threads=threads,
            peers=peers,
            llama_server=llama_server,
        ),
        options,
    )


@bench_app.command("report")
@ends_well
def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="Of `forerun bench`.")],
) -> None:
    """Render the results of a folder again: report.md, report.html and plots. Prints the page's path."""
    from forerun.cli.bench_report import report

    typer.echo(report(folder))


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
