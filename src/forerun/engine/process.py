"""Engine processes: how one is started, talked to, and ended; and after how long the next one is."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.engine import messages
from forerun.engine.connection import Connection
from forerun.engine.messages import Command, Report, Start
from forerun.engine.spawn import ENGINE_CHILD, SpareProcess, spawn


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """What an engine process runs."""

    factory: str
    """"module:function", called with the options and what to report progress to; returns EngineParts."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Plain values: text, numbers, lists and maps of them."""
    beat: float = 1.0
    """Seconds between two signs of life."""
    child: str = ENGINE_CHILD
    """The module that is run."""
    spare: SpareProcess | None = None
    """Of that module: the first start takes it, if it is still there."""

    def start(self) -> EngineProcess:
        """Start a process that builds this engine.

        On Linux it ends with the thread that calls: that one has to live as long as it.
        """
        spawned = (self.spare and self.spare.take()) or spawn(self.child)
        process = EngineProcess(spawned.popen, Connection(spawned.socket, messages.reports()))
        start = Start(self.factory, self.options, tuple(filter(None, sys.path)), _log_levels(), self.beat)
        process.send(start)
        return process


def _log_levels() -> dict[str, int]:
    """What is logged here is logged there: the levels of the root and of all loggers of ours that were given one."""
    loggers = logging.getLogger().manager.loggerDict.items()
    own = {name: logger.level for name, logger in loggers if isinstance(logger, logging.Logger) and logger.level}
    ours = {name: level for name, level in own.items() if name.partition(".")[0] == "forerun"}
    return {"": logging.getLogger().getEffectiveLevel(), **ours}


class EngineProcess:
    """One engine process, from outside. Any thread."""

    def __init__(self, popen: subprocess.Popen[bytes], connection: Connection[Report]) -> None:
        self._popen = popen
        self._connection = connection

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send(self, command: Command) -> None:
        """Waits while the process does not read. What it cannot be given raises, as `messages.encode` does; that it is
        gone is found by `receive`."""
        data = messages.encode(command)
        try:
            self._connection.send(data)
        except OSError:
            self._connection.shut()

    def receive(self) -> Report | None:
        """The next report; None once the process is gone. Raises EngineError where it makes no sense."""
        return self._connection.receive()

    def kill(self) -> None:
        self._popen.kill()
        self._connection.shut()

    def ended(self, seconds: float = 1.0) -> str:
        """How it ended, for people. Kills it where it has not within some seconds."""
        try:
            code = self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._popen.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f"was killed by signal {-code}"

    def close(self) -> None:
        """Free the connection of a process that has ended. Nobody may be receiving."""
        self._connection.close()

    def __repr__(self) -> str:
        return f"EngineProcess({self.pid})"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a process that died is started again. Seconds."""

    first: float = 0.2
    most: float = 30.0
    forgives_after: float = 60.0
    """An engine that was ready for so long starts over with `first`."""

    def attempt(self, before: int, ready_for: float) -> int:
        """Which attempt comes next, after `before` in a row and an engine that was ready for so long."""
        return 1 if ready_for >= self.forgives_after else before + 1

    def delay(self, attempt: int) -> float:
        """Before the first attempt (1), the second, and so on."""
        doublings = min(attempt - 1, 64)
        return min(self.first * 2.0**doublings, self.most)
