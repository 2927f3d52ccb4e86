"""The command line: parses, then calls one function a command.

Text goes to standard output, everything else to standard error. Exit codes: 0 done, 1 some prompts of a batch failed,
2 a usage or model error, 130 interrupted, 141 the reader of standard output went away.
"""

import sys
from collections.abc import Sequence
from typing import Final

_OF_AN_ENGINE: Final = ("forerun.compose_process", "forerun.native.runner")


def main() -> None:
    """Entry point of the `forerun` program."""
    from forerun.cli.endings import keep_interrupts, open_closed_streams

    open_closed_streams()
    keep_interrupts()
    if _will_serve(sys.argv[1:]):
        from forerun.engine.early import begin_early

        begin_early(_OF_AN_ENGINE)  # it loads beside what follows
    from forerun.cli.app import app

    app()


def _will_serve(arguments: Sequence[str]) -> bool:
    return arguments[:1] == ["serve"] and len(arguments) > 1 and "--help" not in arguments


__all__ = ["main"]
