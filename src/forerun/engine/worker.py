"""The engine thread: owns the loop, takes commands between steps, hands outputs over once a step.

    any thread     submit, abort, ask, close  -> commands ->  [ drain | step | deliver ]  engine thread
                   sinks                      <- deltas   <-

Everything the loop joins (scheduler, pool, native contexts) is touched by the engine thread alone and freed there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

from forerun.core.request import FinishReason, OutputDelta, Request
from forerun.engine.backlog import Backlog
from forerun.engine.health import EngineHealth, EngineState, stalled_or_ready
from forerun.engine.loop import EngineLoop
from forerun.engine.questions import Question
from forerun.errors import EngineClosedError, EngineError, InvalidRequestError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_CLOSED = "the engine was closed"
_LAST_COPIES = 2.0
"""Seconds that closing an engine may take to copy prefixes out of its memory."""
STALL_AFTER = 120.0
"""Seconds after which a step that has not ended is taken for one that never will; a long prefill chunk takes a few."""


class Sink(Protocol):
    """Where the outputs of some requests go. Hashed by identity."""

    def deliver(self, deltas: Sequence[OutputDelta]) -> bool:
        """Take one step's deltas (none, to find out), without blocking: the engine thread calls. False where nobody
        listens any more."""
        ...


class QueueSink:
    """Hands deltas to one waiting thread. `backlog` is told what that thread has read."""

    __slots__ = ("_backlog", "_steps")

    def __init__(self, backlog: Backlog | None = None) -> None:
        self._steps: SimpleQueue[Sequence[OutputDelta]] = SimpleQueue()
        self._backlog = backlog

    def deliver(self, deltas: Sequence[OutputDelta]) -> bool:
        if self._backlog is not None:
            self._backlog.add(deltas)
        self._steps.put(deltas)
        return True

    def wait(self) -> Sequence[OutputDelta]:
        """The next step's deltas."""
        deltas = self._steps.get()
        if self._backlog is not None:
            self._backlog.take(deltas)
        return deltas


@dataclass(frozen=True, slots=True)
class Submit:
    """Requests that arrive together are admitted together: none of them waits for a step the others are in."""

    requests: tuple[Request, ...]
    sink: Sink


@dataclass(frozen=True, slots=True)
class Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    question: Question[Any]
    answer: Future[Any]


@dataclass(frozen=True, slots=True)
class Close:
    pass


Command: TypeAlias = Submit | Abort | Pause | Resume | Ask | Close


class Worker(Protocol):
    """An engine at work, on a thread of this process or in a process of its own. Any thread may call."""

    @property
    def health(self) -> EngineHealth: ...

    def submit(self, requests: Iterable[Request], sink: Sink) -> None:
        """Queue requests; deltas and refusals go to `sink`. Raises EngineClosedError once the engine has ended, and
        OverloadedError where it comes back and too many wait for that already."""
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests with finish reason ABORT before the next step. Unknown and finished ones are left alone. Never
        waits, and may be called wherever the garbage collector happens to run."""
        ...

    def pause(self, request_ids: Iterable[str]) -> None:
        """Their readers are behind: they get nothing from the next step on, until `resume`. Never waits."""
        ...

    def resume(self, request_ids: Iterable[str]) -> None:
        """Paused requests go on, where they were. Never waits."""
        ...

    def ask(self, question: Question[T]) -> Future[T]:
        """What the engine answers between two steps. Raises as `submit` does."""
        ...

    def close(self) -> None:
        """End open requests with EngineClosedError, free everything, wait for that. Safe to call again."""
        ...


class EngineWorker:
    """Runs an EngineLoop on a thread of its own until closed.

    `dispose` is told why it ends, and frees what the loop used, on that thread. `interrupt` cuts a running step short.
    """

    def __init__(
        self,
        loop: EngineLoop,
        dispose: Callable[[str], None],
        *,
        interrupt: Callable[[], None] = lambda: None,
        checks_integrity: bool = False,
        stall_after: float = STALL_AFTER,
    ) -> None:
        self._loop = loop
        self._stall_after = stall_after
        self._began: float | None = None
        self._steps = 0
        self._interrupt = interrupt
        self._dispose = dispose
        self._checks_integrity = checks_integrity
        # SimpleQueue.put is reentrant: an iterator's __del__ may send an Abort wherever the collector happens to run.
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._unwanted: dict[str, None] = {}
        """Requests that are to be aborted before the next step."""
        self._paused: dict[str, None] = {}
        self._ended: str | None = None
        self._ending = threading.Lock()
        # A daemon, since Python waits for other threads before it runs the exit hook that closes a forgotten engine.
        self._thread = threading.Thread(target=self._run, name="forerun-engine", daemon=True)
        self._thread.start()

    # --- any thread ----------------------------------------------------------

    @property
    def health(self) -> EngineHealth:
        if self._ended is None:
            return stalled_or_ready(self.step_seconds, self._stall_after)
        return EngineHealth(EngineState.CLOSED if self._ended == _CLOSED else EngineState.FAILED, self._ended)

    @property
    def steps(self) -> int:
        """How many have ended."""
        return self._steps

    @property
    def step_seconds(self) -> float | None:
        """How long the step that goes on has taken, deltas handed out and commands taken; None where there is no work.
        On the engine's clock."""
        began = self._began
        return None if began is None else max(self._loop.clock() - began, 0.0)

    def submit(self, requests: Iterable[Request], sink: Sink) -> None:
        """Queue requests; deltas and refusals go to `sink`. Raises EngineClosedError once the engine has ended."""
        self._send(Submit(tuple(requests), sink))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests with finish reason ABORT before the next step. Unknown and finished ones are left alone."""
        request_ids = tuple(request_ids)
        self._cut_short(request_ids)
        self._commands.put(Abort(request_ids))

    def _cut_short(self, aborted: Sequence[str]) -> None:
        """Interrupt a step that evaluates long parts of prompts, and nothing but what nobody wants any more.

        Where it has just ended the next one may be cut short instead, which is then repeated.
        """
        self._unwanted.update(dict.fromkeys(aborted))
        in_step = self._loop.scheduler.in_long_step
        if in_step and in_step <= self._unwanted.keys():
            self._interrupt()

    def pause(self, request_ids: Iterable[str]) -> None:
        """Their readers are behind: they get nothing from the next step on, until `resume`."""
        self._commands.put(Pause(tuple(request_ids)))

    def resume(self, request_ids: Iterable[str]) -> None:
        """Paused requests go on, where they were."""
        self._commands.put(Resume(tuple(request_ids)))

    def ask(self, question: Question[T]) -> Future[T]:
        """What the engine answers between two steps. Raises EngineClosedError once the engine has ended."""
        answer: Future[T] = Future()
        self._send(Ask(question, answer))
        return answer

    def close(self) -> None:
        """End open requests with EngineClosedError, free everything, join the thread. Safe to call again."""
        self._commands.put(Close())
        self._interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send(self, command: Submit | Ask) -> None:
        # Without the lock the thread could end between the check and the put, and the caller would wait for ever.
        with self._ending:
            if self._ended is not None:
                raise EngineClosedError(self._ended)
            self._commands.put(command)

    def __repr__(self) -> str:
        state = "alive" if self._ended is None else f"ended: {self._ended}"
        return f"EngineWorker({state}, {len(self._sinks)} open requests)"

    # --- engine thread ----------------------------------------------------------

    def _run(self) -> None:
        reason = _CLOSED
        try:
            while self._drain():
                self._began = self._loop.clock()
                self._deliver(self._loop.step())
                self._steps += 1
            self._finish_storing()
        except BaseException as error:
            logger.exception("the engine thread died with %d open requests", len(self._sinks))
            reason = f"the engine thread died: {type(error).__name__}: {error}"
        finally:
            self._end(reason)

    def _finish_storing(self) -> None:
        """End what is open, and copy what is worth keeping to where it survives, for a bounded time."""
        scheduler, until = self._loop.scheduler, self._loop.clock() + _LAST_COPIES
        if not scheduler.has_disk_tier:
            return
        for request_id, sink in self._sinks.items():
            _delivered(sink, [self._last_delta(request_id, EngineClosedError(_CLOSED))])
        self._sinks.clear()
        while scheduler.has_work and self._loop.clock() < until:
            self._loop.step()

    def _drain(self) -> bool:
        """Perform what was asked for since the last step; sleep while there is nothing to do. False to close."""
        commands, scheduler = self._commands, self._loop.scheduler
        while not (scheduler.has_work and commands.empty()):
            if not scheduler.has_work:
                self._began = None
                if self._checks_integrity and commands.empty():
                    scheduler.check_integrity()
            command = commands.get()
            if isinstance(command, Close):
                return False
            self._perform(command)
        return True

    def _perform(self, command: Submit | Abort | Pause | Resume | Ask) -> None:
        if isinstance(command, Submit):
            self._forget_deserted()
            self._sinks.update((request.id, command.sink) for request in command.requests)
            self._deliver([refused for request in command.requests if (refused := self._add(request)) is not None])
        elif isinstance(command, Abort):
            for request_id in command.request_ids:
                self._unwanted.pop(request_id, None)
            ended = [self._abort(request_id) for request_id in command.request_ids]
            self._deliver([delta for delta in ended if delta is not None])
        elif isinstance(command, Pause):
            self._pause(command.request_ids)
        elif isinstance(command, Resume):
            self._resume(command.request_ids)
        elif command.answer.set_running_or_notify_cancel():
            _answer(command, self._loop)

    def _pause(self, request_ids: Sequence[str]) -> None:
        for request_id in self._sinks.keys() & request_ids:
            self._loop.scheduler.pause(request_id)
            self._paused[request_id] = None

    def _resume(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._loop.scheduler.resume(request_id)
            self._paused.pop(request_id, None)

    def _forget_deserted(self) -> None:
        """End paused requests whose readers are gone: no delta comes for them that would show it."""
        for request_id in list(self._paused):
            sink = self._sinks.get(request_id)
            if sink is not None and not _delivered(sink, ()):
                self._forget(sink)
        self._paused = {key: None for key in self._paused if key in self._sinks}

    def _add(self, request: Request) -> OutputDelta | None:
        try:
            self._loop.scheduler.add(request)
        except InvalidRequestError as error:
            return OutputDelta(request.id, "", (), finish_reason=FinishReason.ERROR, error=error)
        except Exception as error:  # one request that nobody thought of must not end all the others
            logger.exception("request %s could not be taken", request.id)
            refused = EngineError(f"the request could not be taken: {type(error).__name__}: {error}")
            return OutputDelta(request.id, "", (), finish_reason=FinishReason.ERROR, error=refused)
        return None

    def _deliver(self, deltas: Sequence[OutputDelta]) -> None:
        self._loop.telemetry.count_deltas(deltas)
        by_sink: dict[Sink, list[OutputDelta]] = {}
        for delta in deltas:
            ends = delta.finish_reason is not None
            sink = self._sinks.pop(delta.request_id, None) if ends else self._sinks.get(delta.request_id)
            if sink is not None:
                by_sink.setdefault(sink, []).append(delta)
        for sink, own in by_sink.items():
            if not _delivered(sink, own):
                self._forget(sink)

    def _forget(self, sink: Sink) -> None:
        for request_id in [request_id for request_id, other in self._sinks.items() if other is sink]:
            del self._sinks[request_id]
            self._abort(request_id)

    def _abort(self, request_id: str) -> OutputDelta | None:
        return self._loop.scheduler.abort(request_id, self._loop.clock())

    def _end(self, reason: str) -> None:
        with self._ending:
            self._ended = reason
        while not self._commands.empty():
            self._refuse(self._commands.get(), reason)
        for request_id, sink in self._sinks.items():
            _delivered(sink, [self._last_delta(request_id, EngineClosedError(reason))])
        self._sinks.clear()
        try:
            try:
                self._loop.runner.close()
            finally:
                self._dispose(reason)
        except Exception:
            logger.exception("the engine could not free everything it held")

    def _refuse(self, command: Command, reason: str) -> None:
        if isinstance(command, Submit):
            self._sinks.update((request.id, command.sink) for request in command.requests)
        elif isinstance(command, Ask) and command.answer.set_running_or_notify_cancel():
            command.answer.set_exception(EngineClosedError(reason))

    def _last_delta(self, request_id: str, error: EngineClosedError) -> OutputDelta:
        try:
            delta = self._abort(request_id)
        except Exception:  # after a crash the scheduler may be in any state; its requests are told all the same
            logger.exception("request %s could not be aborted", request_id)
            delta = None
        delta = delta or OutputDelta(request_id, "", ())
        return replace(delta, finish_reason=FinishReason.ERROR, error=error)


def _delivered(sink: Sink, deltas: Sequence[OutputDelta]) -> bool:
    """Hand over what is a sink's. Its own errors are its own requests' end."""
    try:
        return sink.deliver(deltas)
    except Exception:
        logger.exception("outputs could not be delivered")
        return False


def _answer(asked: Ask, loop: EngineLoop) -> None:
    try:
        asked.answer.set_result(asked.question.answer(loop))
    except Exception as error:  # noqa: BLE001 (the question is the caller's, and so is what it raises)
        asked.answer.set_exception(error)
