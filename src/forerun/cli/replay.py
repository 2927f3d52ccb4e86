"""`forerun replay`: decide again what a recorded engine decided."""

from __future__ import annotations

from pathlib import Path

import typer

from forerun.cli.endings import SOME_FAILED
from forerun.engine.recording import read_recording
from forerun.errors import ForerunError
from forerun.testing.replay import Replay, ReplayedStep


def replay_recording(path: Path, *, shows: bool) -> None:
    """Replay a recording and say whether every step is what it was; `shows`: all steps, in words."""
    replay = Replay(lambda: read_recording(path))
    steps, last = 0, None
    try:
        for last in replay:
            steps += 1
            if shows:
                typer.echo("\n".join(_shown(last)))
    except (ForerunError, OSError):  # nobody reads any more (`| head`), for instance
        raise
    except Exception as error:
        raise ForerunError(
            f"{path}: after {steps} steps the scheduler failed: {type(error).__name__}: {error}"
        ) from error
    if last is None or last.is_same:
        typer.echo(f"{steps} steps of {replay.requests} requests were decided again: all as recorded")
        return
    where = f"step {last.number} of session {last.session}"
    typer.echo(f"{steps - 1} steps were decided again as recorded; {where} is another one now")
    if not shows:
        typer.echo("\n".join(_shown(last)))
    raise typer.Exit(SOME_FAILED)


def _shown(step: ReplayedStep) -> list[str]:
    mark = "" if step.is_same else "  (not as recorded)"
    heading = f"session {step.session}, step {step.number} at {step.now:.3f}{mark}"
    return [heading, *(f"    {line}" for line in step.lines)]
