"""The command line: parses, then calls one function a command.

Text goes to standard output, everything else to standard error. Exit codes: 0 done, 1 some prompts of a batch failed,
2 a usage or model error, 130 interrupted, 141 the reader of standard output went away.
"""

from forerun.cli.app import app
from forerun.cli.endings import keep_interrupts, open_closed_streams


def main() -> None:
    """Entry point of the `forerun` program."""
    open_closed_streams()
    keep_interrupts()
    app()


__all__ = ["app", "main"]
