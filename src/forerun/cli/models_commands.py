"""`forerun models`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli.endings import ends_well

models_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Models: what there is, what a file says of itself, and what was pulled.",
)

_SHOW_EXAMPLES = """
Examples:

    forerun models show smollm2

    forerun models show ~/models/large-00001-of-00003.gguf --json
"""

_LIST_EXAMPLES = """
Examples:

    forerun models list

    forerun models list --here
"""

_KEY_EXAMPLES = """
Examples:

    forerun models key large.gguf --draft small.gguf

    forerun models key qwen2.5-coder-1.5b --json
"""

_RM_EXAMPLES = """
Examples:

    forerun models rm qwen2.5-coder-1.5b

    forerun models rm hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_k_m.gguf --yes
"""

_VERIFY_EXAMPLES = """
Examples:

    forerun models verify

    forerun models verify qwen2.5-coder-1.5b
"""

_FLAG = ""

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or an id (`forerun models list`).")]
AsJson = Annotated[bool, typer.Option("--json", metavar=_FLAG, help="One JSON object.")]


@models_app.command(epilog=_SHOW_EXAMPLES)
@ends_well
def show(model: Model, *, json: AsJson = False) -> None:
    """What a model is: architecture, sizes, context, vocabulary, quantisation, kind of memory, MTP head, parts.

    Reads headers alone, no weights. Of an id also what the catalog says.
    """
    from forerun.cli.models import show_model

    show_model(model, as_json=json)


@models_app.command("list", epilog=_LIST_EXAMPLES)
@ends_well
def list_command(
    *,
    here: Annotated[bool, typer.Option("--here", metavar=_FLAG, help="Only what is here and can be loaded.")] = False,
    json: AsJson = False,
) -> None:
    """Models that have an id: Forerun's own and those of your catalog (docs/models.md), and what was pulled besides."""
    from forerun.cli.models import list_models

    list_models(only_here=here, as_json=json)


@models_app.command(epilog=_KEY_EXAMPLES)
@ends_well
def key(
    model: Model,
    *,
    draft: Annotated[str | None, typer.Option(help="A draft model, named the same way.")] = None,
    mtp: Annotated[bool, typer.Option("--mtp", metavar=_FLAG, help="The model's own MTP head drafts.")] = False,
    json: AsJson = False,
) -> None:
    """The key of a model and what drafts for it: the same everywhere for the same files, whatever they are called.

    Reads the files whole where their digests are not known yet. Stored prefixes are kept under it. Of an id of the
    catalog without options it is that of the model with its draft.
    """
    from forerun.cli.models import show_key

    show_key(model, draft=draft, has_mtp=mtp, as_json=json)


@models_app.command(epilog=_RM_EXAMPLES)
@ends_well
def rm(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="What they were pulled as.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", metavar=_FLAG, help="Do not ask.")] = False,
) -> None:
    """Delete models that were pulled, also what there is of one that was not pulled to its end.

    An engine that has one loaded goes on with it.
    """
    from forerun.cli.models_store import remove_models

    remove_models(models, yes=yes)


@models_app.command(epilog=_VERIFY_EXAMPLES)
@ends_well
def verify(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="What they were pulled as. Default: all.")
    ] = None,
) -> None:
    """Read every byte of models that were pulled, and compare sha256 and size with what they had.

    Ends with 0 where all files are as they were, with 1 where one is not.
    """
    from forerun.cli.models_store import verify_models

    verify_models(models or ())
