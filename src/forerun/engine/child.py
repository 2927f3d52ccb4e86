"""The engine process: `python -m forerun.engine.child FD PID`, its end of a socket pair and who started it.

    main thread reads commands ──► CompilingIntake ──► engine thread ──► Outbox ──► writer thread

It is started by `engine.process` alone, and ends with the process that started it.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

from forerun.buffers import trim_heap
from forerun.core.request import OutputDelta
from forerun.engine import messages
from forerun.engine.child_start import begin, built
from forerun.engine.compiling_intake import CompilingIntake
from forerun.engine.connection import Connection
from forerun.engine.loop import EngineLoop
from forerun.engine.media_desk import MediaDesk
from forerun.engine.media_mail import Measure
from forerun.engine.messages import (
    Abort,
    Ask,
    Beat,
    Close,
    Command,
    Deltas,
    Failed,
    GiveMedia,
    Pause,
    Ready,
    Report,
    Resume,
    Submit,
    WantMedia,
)
from forerun.engine.parts import EngineParts
from forerun.engine.worker import EngineWorker
from forerun.errors import EngineClosedError, EngineError, ForerunError

_UNSENT_STEPS: Final = 4096
"""The engine waits where so many steps were not read: the front end is stopped, nobody reads."""
_LAST_SECONDS: Final = 10
"""That an engine whose front end is gone may take to end."""


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
    begun = begin(arguments)
    if begun is None:
        return 1
    connection, start = begun
    outbox = Outbox(connection, start.beat)
    try:
        parts: EngineParts = built(start, outbox.put)
    except ForerunError as error:
        outbox.put(Failed(messages.wire_error(error)))
        outbox.close()
        return 1
    trim_heap()
    gc.freeze()  # what was loaded stays: no collection between two steps needs to look at it again
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
    desk = MediaDesk(parts.media, parts.media_mail, lambda digest: outbox.put(WantMedia(digest)))
    outbox.put(Ready(parts.model_name, parts.n_ctx))
    outbox.start_beating(lambda: Beat(worker.steps, worker.step_seconds))
    while not isinstance(command := connection.receive(), Close | None):
        with suppress(EngineClosedError):  # the thread died just now: the next command is none
            _perform(command, worker, intake, desk, outbox)
    signal.alarm(_LAST_SECONDS)  # the system ends us then, whatever is stuck
    intake.close()
    desk.close()
    worker.close()
    outbox.close()


def _perform(command: Command, worker: EngineWorker, intake: CompilingIntake, desk: MediaDesk, outbox: Outbox) -> None:
    match command:
        case Submit(requests):
            intake.submit(requests, outbox)
        case Abort(request_ids):
            intake.abort(request_ids)
        case Pause(request_ids):
            worker.pause(request_ids)
        case Resume(request_ids):
            worker.resume(request_ids)
        case GiveMedia(digest, item):
            desk.deliver(digest, item)
        case Ask(number):
            question = messages.question_of(command)
            answer = desk.measure(question) if isinstance(question, Measure) else worker.ask(question)
            answer.add_done_callback(partial(_put_answer, outbox, number))
        case _:
            raise EngineError(f"{type(command).__name__} is no command for an engine that runs")


def _put_answer(outbox: Outbox, number: int, done: Future[Any]) -> None:
    if not done.cancelled():
        outbox.put(_answer(number, done))


def _answer(number: int, done: Future[Any]) -> messages.Answer:
    error = done.exception()
    if error is None:
        return messages.answered(number, done.result())
    return messages.failed(number, error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
