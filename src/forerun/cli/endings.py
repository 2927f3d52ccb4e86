"""How commands end: one clear line and an exit code, whatever went wrong."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import typer

from forerun.errors import ForerunError

SOME_FAILED = 1
ERROR = 2
INTERRUPTED = 130
READER_GONE = 141
_AGAIN = 0.02
"""Seconds until a dropped Ctrl-C is sent again."""


def ends_well(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose ForerunErrors, interrupts and closed pipes end as the exit codes above."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
            sys.stdout.flush()
        except ForerunError as error:
            report(error)
            raise typer.Exit(ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            drop_output()
            raise typer.Exit(READER_GONE) from None
        except OSError as error:  # a full disk under standard output, for instance
            drop_output()
            report(error)
            raise typer.Exit(ERROR) from None

    return wrapped


def report(error: ForerunError | OSError) -> None:
    """The one line about an error."""
    typer.echo(f"forerun: {' '.join(str(error).split())}", err=True)


def open_closed_streams() -> None:
    """Let standard streams that were closed before the start (`>&-`) lead nowhere.

    Python leaves None in their places, and the next files to be opened would get their descriptors.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the program


def keep_interrupts() -> None:
    """Send Ctrl-C again where Python dropped it.

    Where it meets a callback of the interpreter (an import's, a weak reference's, ctypes') there is nobody to raise
    KeyboardInterrupt to, and the program would go on as if nothing had been.
    """
    usual = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            usual(unraisable)
            return
        again = threading.Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGINT))  # at once it would be dropped here too
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def drop_output() -> None:
    """Send standard output nowhere: what is still buffered must not fail again when Python exits."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
