"""What engine processes of tests build: the served fake model, with faults that a prompt or an option calls for."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerun.core.step import PrefillRows, Runner, StepPlan, StepResult
from forerun.engine.loading import LoadPhase, LoadProgress
from forerun.engine.parts import EngineParts
from forerun.errors import ModelLoadError
from forerun.testing.served import ByteVocabulary, served_parts

KILLS, RAISES, HANGS = "☠", "✂", "⏳"
"""A prompt with one of these in it ends the process, its engine thread, or never."""


class FaultyRunner(Runner):
    """Looks for faults in what is to be evaluated."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def execute(self, plan: StepPlan) -> StepResult:
        text = b"".join(_text(rows) for rows in plan.prefill if isinstance(rows, PrefillRows)).decode("utf-8", "ignore")
        if KILLS in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if RAISES in text:
            raise ZeroDivisionError("a fault nobody foresaw")
        if HANGS in text:
            time.sleep(3600)
        return self._runner.execute(plan)

    def close(self) -> None:
        self._runner.close()


def _text(rows: PrefillRows) -> bytes:
    return b"".join(ByteVocabulary().piece(int(token)) for token in rows.tokens)


def make(options: Mapping[str, Any], progress: LoadProgress) -> EngineParts:
    """Options of `served_parts`, and of the faults: `fails` (the message), `dies` loading, `loads_while` a file is
    there; `imported` writes the names of loaded modules to a file; `warns` are loggers that warn."""
    given = dict(options)
    fails, dies, waits_for = given.pop("fails", None), given.pop("dies", False), given.pop("loads_while", None)
    imported = given.pop("imported", None)
    for name in given.pop("warns", ()):
        logging.getLogger(name).warning("this is wrong")
    progress(LoadPhase.TARGET, "a model", 0.5)
    if fails:
        raise ModelLoadError(fails)
    if dies:
        os.kill(os.getpid(), signal.SIGSEGV)
    while waits_for and Path(waits_for).exists():
        time.sleep(0.005)
    if imported:
        import sys

        Path(imported).write_text("\n".join(sys.modules))
    parts = served_parts(**given)
    return replace(parts, runner=FaultyRunner(parts.runner), checks_integrity=True)
