"""`forerun models`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli.endings import ends_well

models_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Models that were pulled: look, check, delete.",
)

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
