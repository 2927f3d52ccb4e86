"""`forerun cache`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli.endings import ends_well
from forerun.cli.flatten import takes_groups
from forerun.cli.options import ModelOptions, UseAdapter

cache_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look into a cache directory, and clear it. No engine is needed; one may be running.",
)

_STATS_EXAMPLES = """
Examples:

    forerun cache stats --cache-dir ~/kv

    forerun cache stats --cache-dir ~/kv --json
"""

_LS_EXAMPLES = """
Examples:

    forerun cache ls --cache-dir ~/kv

    forerun cache ls --cache-dir ~/kv --model smollm2 --limit 5
"""

_LOOKUP_EXAMPLES = """
Examples:

    forerun cache lookup smollm2 "Why is the sky blue?" --cache-dir ~/kv

    cat report.txt | forerun cache lookup model.gguf - --system "Summarise." --cache-dir ~/kv
"""

_CLEAR_EXAMPLES = """
Examples:

    forerun cache clear --cache-dir ~/kv

    forerun cache clear --cache-dir ~/kv --older-than 30d --yes

    forerun cache clear --cache-dir ~/kv --model smollm2
"""

_FLAG = ""

Directory = Annotated[
    str, typer.Option("--cache-dir", metavar="PATH", help="The directory that engines are given.", show_default=False)
]
OneModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="One model alone: its file or name, or how its key begins."),
]
AsJson = Annotated[bool, typer.Option("--json", metavar=_FLAG, help="One JSON object.")]


@cache_app.command(epilog=_STATS_EXAMPLES)
@ends_well
def stats(*, cache_dir: Directory, json: AsJson = False) -> None:
    """Bytes, segments and conversations, a line a model."""
    from forerun.cli.cache import show_stats

    show_stats(cache_dir, as_json=json)


@cache_app.command(epilog=_LS_EXAMPLES)
@ends_well
def ls(
    *,
    cache_dir: Directory,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="One model alone: by its vocabulary the first words are shown that differ."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most, the last used first.")] = 20,
    json: AsJson = False,
) -> None:
    """Conversations that can be restored: tokens, bytes, last use."""
    from forerun.cli.cache import list_conversations

    list_conversations(cache_dir, model=model, limit=limit, as_json=json)


@cache_app.command(epilog=_LOOKUP_EXAMPLES)
@takes_groups
@ends_well
def lookup(
    model: ModelOptions,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A prompt; `-` reads standard input.")],
    *,
    system: Annotated[str | None, typer.Option(help="System message before the prompt.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", metavar=_FLAG, help="The prompt as it is, without the model's chat template.")
    ] = False,
    use_adapter: UseAdapter = None,
    json: AsJson = False,
) -> None:
    """How many tokens of a prompt an engine with these options would find on disk.

    Other options than those that were used may mean other KV: a draft, for instance.
    """
    from forerun.cli.cache import look_up

    look_up(model, prompt, system=system, raw=raw, use_adapter=use_adapter, as_json=json)


@cache_app.command(epilog=_CLEAR_EXAMPLES)
@ends_well
def clear(
    *,
    cache_dir: Directory,
    model: OneModel = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="What was not used for so long, such as 30d or 12h.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", metavar=_FLAG, help="Do not ask.")] = False,
) -> None:
    """Delete segments: all, those of one model, or those not used for long. Encoded pictures are no one model's."""
    from forerun.cli.cache import clear_cache

    clear_cache(cache_dir, model=model, older_than=older_than, yes=yes)
