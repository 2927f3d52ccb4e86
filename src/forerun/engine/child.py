"""The engine process: `python -m forerun.engine.child FD PID`, its end of a socket pair and who started it.

    main thread reads commands ──► CompilingIntake ──► engine thread ──► Outbox ──► writer thread

It is started by `engine.process` alone, and ends with the process that started it. Ctrl-C and a service manager's
SIGTERM reach the whole group of processes, and are for the front end, which stops this one in order.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeAlias

from forerun.core.request import OutputDelta
from forerun.engine import messages
from forerun.engine.compiling_intake import CompilingIntake
from forerun.engine.connection import Connection
from forerun.engine.loop import EngineLoop
from forerun.engine.messages import (
    Abort,
    Ask,
    Beat,
    Close,
    Command,
    Deltas,
    Failed,
    Loading,
    Ready,
    Report,
    Start,
    Submit,
)
from forerun.engine.parts import EngineParts
from forerun.engine.worker import EngineWorker
from forerun.errors import EngineClosedError, EngineError, ForerunError, InvalidConfigError

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[str, float], None]
Factory: TypeAlias = Callable[[Mapping[str, Any], Progress], EngineParts]
"""Builds an engine. Raises ForerunError."""

_PR_SET_PDEATHSIG: Final = 1
_UNSENT_STEPS: Final = 4096
"""The engine waits where so many steps were not read: the front end is stopped, nobody reads."""
_LAST_SECONDS: Final = 10
"""That an engine whose front end is gone may take to end."""
_SMALLEST_PROGRESS: Final = 0.01


class Outbox:
    """Sends reports from a thread of its own, so that no step waits for the socket. A `Beat` goes out while there is
    nothing else to say."""

    def __init__(self, connection: Connection[Command], beat: float) -> None:
        self._connection = connection
        self._beat = beat
        self._beats: Callable[[], Beat] | None = None
        self._reports: queue.Queue[Report | None] = queue.Queue(_UNSENT_STEPS)
        self._thread = threading.Thread(target=self._run, name="forerun-outbox", daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        """Any thread."""
        self._reports.put(report)

    def deliver(self, deltas: Sequence[OutputDelta]) -> bool:
        """Implements worker.Sink, for all requests: one message a step."""
        self._reports.put(Deltas(tuple(deltas)))
        return True

    def start_beating(self, beats: Callable[[], Beat]) -> None:
        self._beats = beats

    def close(self) -> None:
        """Send what is left, for a bounded time."""
        self._reports.put(None)
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                report = self._reports.get(timeout=self._beat)
            except queue.Empty:
                report = self._beats() if self._beats is not None else None
                if report is None:
                    continue
            else:
                if report is None:
                    return
            try:
                self._connection.send(messages.encode(report))
            except OSError:
                os._exit(1)  # the front end is gone


def main(arguments: Sequence[str]) -> int:
    """Serve the front end at the other end of a socket until it says so or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_with_parent(int(arguments[1]))
    connection = Connection(socket.socket(fileno=int(arguments[0])), messages.commands())
    start = connection.receive()
    if not isinstance(start, Start):
        return 1
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name, level in start.log_levels.items():
        logging.getLogger(name).setLevel(level)
    outbox = Outbox(connection, start.beat)
    try:
        parts = _built(start, outbox)
    except ForerunError as error:
        outbox.put(Failed(messages.wire_error(error)))
        outbox.close()
        return 1
    serve(parts, connection, outbox)
    return 0


def serve(parts: EngineParts, connection: Connection[Command], outbox: Outbox) -> None:
    """Answer commands until `Close`, nobody is there to give them, or the engine thread dies."""

    def dispose(reason: str) -> None:
        parts.dispose()
        outbox.put(Failed(messages.WireError("EngineDiedError", reason)))
        connection.stop_receiving()

    worker = EngineWorker(
        EngineLoop(parts.scheduler, parts.runner, parts.clock),
        dispose,
        interrupt=parts.interrupt,
        checks_integrity=parts.checks_integrity,
    )
    intake = CompilingIntake(worker, parts.constrain)
    outbox.put(Ready(parts.model_name, parts.n_ctx))
    outbox.start_beating(lambda: Beat(worker.steps, worker.step_seconds))
    while not isinstance(command := connection.receive(), Close | None):
        with suppress(EngineClosedError):  # the thread died just now: the next command is none
            _perform(command, worker, intake, outbox)
    signal.alarm(_LAST_SECONDS)  # the system ends us then, whatever is stuck
    intake.close()
    worker.close()
    outbox.close()


def _perform(command: Command, worker: EngineWorker, intake: CompilingIntake, outbox: Outbox) -> None:
    match command:
        case Submit(requests):
            intake.submit(requests, outbox)
        case Abort(request_ids):
            intake.abort(request_ids)
        case Ask(number):
            answer = worker.ask(messages.question_of(command))
            answer.add_done_callback(lambda done: outbox.put(_answer(number, done)))
        case _:
            raise EngineError(f"{type(command).__name__} is no command for an engine that runs")


def _answer(number: int, done: Future[Any]) -> messages.Answer:
    error = done.exception()
    if error is None:
        return messages.answered(number, done.result())
    return messages.failed(number, error)


def _built(start: Start, outbox: Outbox) -> EngineParts:
    """The engine that the front end wants. Raises ForerunError, for whatever the factory raises."""
    sys.path.extend(folder for folder in start.path if folder not in sys.path)
    told: dict[str, float] = {}

    def progress(what: str, share: float) -> None:
        if share >= 1.0 or abs(share - told.get(what, -1.0)) >= _SMALLEST_PROGRESS:
            told[what] = share
            outbox.put(Loading(what, share))

    factory = find_factory(start.factory)
    try:
        return factory(start.options, progress)
    except ForerunError:
        raise
    except Exception as error:
        logger.exception("the engine could not be built")
        raise EngineError(f"the engine could not be built: {type(error).__name__}: {error}") from error


def find_factory(path: str) -> Factory:
    """The function at "module:name". Raises InvalidConfigError."""
    module, _, name = path.partition(":")
    try:
        factory: Factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError("factory", f"{path!r} cannot be imported: {error}") from error
    return factory


def _end_with_parent(parent: int) -> None:
    """Have the system end this process when the thread that started it is gone. Elsewhere the socket's end does."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
