"""A worker whose engine runs in a process of its own: started, watched, started again when it dies.

    any thread   submit, abort, ask, close ──► events ──► [ link thread ] ──► commands ──► engine process
                 sinks  ◄── deltas ── [ link thread ] ◄── events ◄── [ reading thread ] ◄──    │
                                                                                                └── dies: all that is
                                                                                                    open ends at once
The link thread owns everything below but what `health` looks at. It also starts the processes: on Linux they end with
the thread that started them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from forerun.core.request import FinishReason, OutputDelta, Request
from forerun.engine import messages
from forerun.engine.crashes import CrashRecords
from forerun.engine.health import READY, EngineHealth, stalled_or_ready
from forerun.engine.lives import CLOSED, Lives
from forerun.engine.messages import (
    Abort,
    Answer,
    Beat,
    Close,
    Deltas,
    Failed,
    GiveMedia,
    Loading,
    Pause,
    Ready,
    Report,
    Resume,
    Submit,
    WantMedia,
)
from forerun.engine.process import Backoff, EngineProcess, EngineProgram
from forerun.engine.questions import Question
from forerun.engine.turns import Opened, SuspectTurns
from forerun.engine.worker import STALL_AFTER, Sink
from forerun.errors import EngineClosedError, EngineDiedError, EngineError, ForerunError, OverloadedError
from forerun.media.item import Media

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """How long things may take, in seconds, and how many may wait."""

    stall_after: float = STALL_AFTER
    """A step takes no longer, or health says so."""
    close: float = 10.0
    """An engine gets so long to end by itself when it is closed."""
    most_waiting: int = 256
    """Requests that wait for an engine that loads or restarts."""
    longest_wait: float = 120.0
    """So long at most."""


@dataclass(frozen=True, slots=True)
class _Submitted:
    requests: tuple[Request, ...]
    sink: Sink


@dataclass(frozen=True, slots=True)
class _Asked:
    question: Question[Any]
    answer: Future[Any]


@dataclass(frozen=True, slots=True)
class _Received:
    """`report` None: the process is gone."""

    process: EngineProcess
    report: Report | None


_Event: TypeAlias = _Submitted | Abort | Pause | Resume | _Asked | Close | _Received


class RemoteWorker:
    """Implements worker.Worker. Any thread may call. `dispose` is told why it ends, once everybody was."""

    def __init__(
        self,
        program: EngineProgram,
        limits: RemoteLimits = RemoteLimits(),
        backoff: Backoff = Backoff(),  # noqa: B008 (a value)
        *,
        clock: Callable[[], float] = time.monotonic,
        dispose: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.started: Future[Ready] = Future()
        """What the engine is, once it is ready for the first time; the ForerunError where it could not be built."""
        self._program = program
        self._limits = limits
        self._clock = clock
        self._dispose = dispose
        # SimpleQueue.put is reentrant: an iterator's __del__ may send an Abort wherever the collector happens to run.
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._ended: str | None = None
        self._ending = threading.Lock()
        self._lives = Lives(backoff, clock)
        self._last_beat: tuple[float, float | None] = (clock(), None)
        self._process: EngineProcess | None = None
        self._is_closing = False
        self._close_until: float | None = None
        self._open: dict[str, Opened] = {}
        self._waiting: dict[str, Opened] = {}
        self._paused: set[str] = set()
        self._asked: dict[int, _Asked] = {}
        self._questions = 0
        self._turns = SuspectTurns(CrashRecords(clock))
        self._thread = threading.Thread(target=self._run, name="forerun-engine-link", daemon=True)
        self._thread.start()

    # --- any thread ----------------------------------------------------------

    @property
    def health(self) -> EngineHealth:
        health = self._lives.health
        if not health.is_ready:
            return health
        heard, step_seconds = self._last_beat
        silence = max(self._clock() - heard, 0.0)
        if step_seconds is None and silence <= self._limits.stall_after:
            return READY
        return stalled_or_ready((step_seconds or 0.0) + silence, self._limits.stall_after)

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None where there is none."""
        process = self._process
        return None if process is None else process.pid

    def submit(self, requests: Iterable[Request], sink: Sink) -> None:
        """Queue requests; deltas and refusals go to `sink`. Raises EngineClosedError once the engine has ended for
        good, OverloadedError where it is not ready and enough wait for that."""
        if not self._lives.is_ready and len(self._waiting) >= self._limits.most_waiting:
            raise self._overloaded(f"{len(self._waiting)} requests wait for the engine already")
        self._send(_Submitted(tuple(requests), sink))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests with finish reason ABORT before the next step. Unknown and finished ones are left alone."""
        self._events.put(Abort(tuple(request_ids)))

    def pause(self, request_ids: Iterable[str]) -> None:
        """Their readers are behind: they get nothing from the next step on, until `resume`."""
        self._events.put(Pause(tuple(request_ids)))

    def resume(self, request_ids: Iterable[str]) -> None:
        """Paused requests go on, where they were."""
        self._events.put(Resume(tuple(request_ids)))

    def ask(self, question: Question[T]) -> Future[T]:
        """What the engine answers between two steps; OverloadedError where it is not ready, EngineDiedError where it
        dies before it answers. Raises EngineClosedError once it has ended for good."""
        answer: Future[T] = Future()
        self._send(_Asked(question, answer))
        return answer

    def close(self) -> None:
        """End open requests with EngineClosedError, then the process: in order where it can within the limit, else by
        force. Safe to call again."""
        self._events.put(Close())
        self._thread.join(self._limits.close + 1.0)
        process = self._process
        if self._thread.is_alive() and process is not None:  # the link may wait for a process that reads nothing
            process.kill()
        self._thread.join()

    def _send(self, event: _Submitted | _Asked) -> None:
        # Without the lock the link could end between the check and the put, and the caller would wait for ever.
        with self._ending:
            if self._ended is not None:
                raise EngineClosedError(self._ended)
            self._events.put(event)

    def __repr__(self) -> str:
        return f"RemoteWorker({self.health.state}, {len(self._open)} open requests)"

    # --- the link thread ----------------------------------------------------------

    def _run(self) -> None:
        reason = CLOSED
        try:
            self._start()
            while self._ended is None:
                self._perform_next()
            reason = self._ended
        except BaseException as error:
            logger.exception("the link to the engine process died")
            reason = f"the link to the engine process died: {type(error).__name__}: {error}"
        finally:
            self._end(reason)

    def _perform_next(self) -> None:
        now = self._clock()
        dues = [due for due in (self._lives.restart_at, self._close_until) if due is not None]
        dues += [opened.waits_until for opened in self._waiting.values()]
        try:
            event = self._events.get(timeout=max(min(dues) - now, 0.0) if dues else None)
        except Empty:
            self._perform_due(self._clock())
        else:
            self._perform(event)

    def _perform_due(self, now: float) -> None:
        if self._close_until is not None and now >= self._close_until and self._process is not None:
            logger.warning("the engine process did not end within %g s: it is killed", self._limits.close)
            self._close_until = None
            self._process.kill()
        if self._lives.restart_at is not None and now >= self._lives.restart_at:
            self._start()
        late = [opened for opened in self._waiting.values() if now >= opened.waits_until]
        for opened in late:
            del self._waiting[opened.request.id]
            self._refuse(opened, self._overloaded(f"the engine was not ready for {self._limits.longest_wait:g} s"))

    def _perform(self, event: _Event) -> None:
        match event:
            case _Submitted():
                self._submit(event)
            case Abort(request_ids):
                self._abort(request_ids)
            case Pause() | Resume():
                self._pass_on(event)
            case _Asked():
                self._ask(event)
            case Close():
                self._begin_to_close()
            case _Received(process, report) if process is self._process:
                self._learn(report)

    # --- requests ----------------------------------------------------------

    def _submit(self, event: _Submitted) -> None:
        self._forget_deserted()
        until = self._clock() + self._limits.longest_wait
        opened = [Opened(request, event.sink, until) for request in event.requests]
        if self._lives.is_ready:
            self._hand_over(opened)
        else:
            self._waiting.update((one.request.id, one) for one in opened)

    def _hand_over(self, opened: Sequence[Opened]) -> None:
        """To the process, but for those that it died of, or may have died of while another such one is with it."""
        process = self._process
        assert process is not None
        now: list[Opened] = []
        for one in opened:
            refusal = self._turns.refusal(one.request)
            if refusal is not None:
                self._refuse(one, refusal)
            elif self._turns.may_start(one):
                now.append(one)
        if not now:
            return
        self._open.update((one.request.id, one) for one in now)
        try:
            process.send(Submit(tuple(one.request for one in now)))
        except (ForerunError, NotImplementedError) as error:
            for one in now:
                del self._open[one.request.id]
                self._turns.left(one)
                self._refuse(one, error if isinstance(error, ForerunError) else EngineError(str(error)))

    def _abort(self, request_ids: Sequence[str]) -> None:
        with_process = [key for key in request_ids if key in self._open]
        if with_process and self._process is not None:
            self._process.send(Abort(tuple(with_process)))
        for request_id in request_ids:
            opened = self._waiting.pop(request_id, None) or self._turns.give_up(request_id)
            if opened is not None:
                opened.sink.deliver([OutputDelta(request_id, "", (), finish_reason=FinishReason.ABORT)])

    def _pass_on(self, event: Pause | Resume) -> None:
        """To the process, where it has such requests."""
        if self._process is None or not any(key in self._open for key in event.request_ids):
            return
        if isinstance(event, Pause):
            self._paused.update(event.request_ids)
        else:
            self._paused.difference_update(event.request_ids)
        self._process.send(event)

    def _forget_deserted(self) -> None:
        """End paused requests whose readers are gone: no delta comes for them that would show it."""
        paused = [self._open[key] for key in self._paused if key in self._open]
        self._abort([opened.request.id for opened in paused if not opened.sink.deliver(())])
        self._paused = {opened.request.id for opened in paused}

    def _relay(self, deltas: Sequence[OutputDelta]) -> None:
        by_sink: dict[Sink, list[OutputDelta]] = {}
        for delta in deltas:
            opened = self._open.get(delta.request_id)
            if opened is None:
                continue
            if isinstance(delta.error, EngineClosedError) and not self._is_closing:
                continue  # its thread died: the process is about to, and then the request is told
            opened.tokens += len(delta.tokens)
            if delta.finish_reason is not None:
                del self._open[delta.request_id]
            self._turns.got_on(opened, delta.finish_reason)
            by_sink.setdefault(opened.sink, []).append(delta)
        for sink, own in by_sink.items():
            if not sink.deliver(own):
                self._abort([key for key, opened in self._open.items() if opened.sink is sink])
        while (suspect := self._turns.next()) is not None:
            self._hand_over([suspect])

    @staticmethod
    def _refuse(opened: Opened, error: ForerunError) -> None:
        delta = OutputDelta(opened.request.id, "", (), finish_reason=FinishReason.ERROR, error=error)
        opened.sink.deliver([delta])

    def _give_media(self, digest: str) -> None:
        items = (item for opened in self._open.values() for item in opened.request.prompt.media.values())
        found = next((item for item in items if item.digest == digest and isinstance(item, Media)), None)
        if self._process is not None:
            self._process.send(GiveMedia(digest, found))

    # --- questions ----------------------------------------------------------

    def _ask(self, asked: _Asked) -> None:
        if not asked.answer.set_running_or_notify_cancel():
            return
        if self._process is None or not self._lives.is_ready:
            asked.answer.set_exception(self._overloaded(self._lives.health.reason or "the engine is not ready"))
            return
        self._questions += 1
        try:
            self._process.send(messages.asked(self._questions, asked.question))
        except ForerunError as error:
            asked.answer.set_exception(error)
            return
        self._asked[self._questions] = asked

    def _answer(self, answer: Answer) -> None:
        asked = self._asked.pop(answer.number)
        if answer.error is not None:
            asked.answer.set_exception(messages.own_error(answer.error))
        else:
            asked.answer.set_result(messages.answer_of(answer, type(asked.question)))

    def _overloaded(self, why: str) -> OverloadedError:
        seconds = self.health.seconds
        return OverloadedError(why, max(1.0 if seconds is None else seconds, 1.0))

    # --- the process ----------------------------------------------------------

    def _start(self) -> None:
        self._lives.begin()
        self._process = process = self._program.start()
        self._reader = threading.Thread(target=self._read, args=(process,), name="forerun-engine-reader", daemon=True)
        self._reader.start()

    def _read(self, process: EngineProcess) -> None:
        """Runs on a thread of its own until the process is gone."""
        report: Report | None
        try:
            while (report := process.receive()) is not None:
                self._last_beat = (self._clock(), report.step_seconds if isinstance(report, Beat) else None)
                if not isinstance(report, Beat):
                    self._events.put(_Received(process, report))
        except EngineError:
            logger.exception("%r is ended", process)
            process.kill()
        self._events.put(_Received(process, None))

    def _learn(self, report: Report | None) -> None:
        match report:
            case Deltas(deltas):
                self._relay(deltas)
            case Answer():
                self._answer(report)
            case WantMedia(digest):
                self._give_media(digest)
            case Loading(phase, what, share):
                self._lives.load(phase, what, share)
            case Ready():
                self._be_ready(report)
            case Failed(error):
                self._lives.say(error.message)
                if not self.started.done():
                    self._give_up(messages.own_error(error))
            case None:
                self._bury()

    def _be_ready(self, ready: Ready) -> None:
        self._lives.be_ready()
        if not self.started.done():
            self.started.set_result(ready)
        waiting = list(self._waiting.values())
        self._waiting.clear()
        if waiting:
            self._hand_over(waiting)

    def _bury(self) -> None:
        """The process is gone: everyone is told, and another one is started later, or none."""
        process, self._process = self._process, None
        assert process is not None
        how = process.ended()
        process.close()
        if self._is_closing:
            self._finish(CLOSED)
            return
        if not self.started.done():
            self._give_up(EngineDiedError(f"the engine's process {how} while it was loading"))
            return
        why = self._lives.why(how)
        logger.error("%s, with %d open requests", why, len(self._open))
        if self._lives.was_ready:
            self._turns.died(self._open.values())
        self._tell_the_open(EngineDiedError(why))
        self._start_later(why)

    def _start_later(self, why: str) -> None:
        self._lives.start_later(why)
        for opened in self._turns.take_held():
            opened.waits_until = self._clock() + self._limits.longest_wait
            self._waiting[opened.request.id] = opened

    def _tell_the_open(self, error: ForerunError) -> None:
        for opened in self._open.values():
            self._refuse(opened, error)
        self._open.clear()
        asked, self._asked = self._asked, {}
        for one in asked.values():
            one.answer.set_exception(error)

    def _give_up(self, error: ForerunError) -> None:
        """It could not be built, and would not be the next time."""
        self._lives.fail(str(error))
        self.started.set_exception(error)
        self._finish(str(error))

    # --- the end ----------------------------------------------------------

    def _begin_to_close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._process is None:
            self._finish(CLOSED)
            return
        self._close_until = self._clock() + self._limits.close
        if self._lives.is_ready:
            self._process.send(Close())
        else:
            self._process.kill()

    def _finish(self, reason: str) -> None:
        with self._ending:
            self._ended = reason

    def _end(self, reason: str) -> None:
        self._finish(reason)
        self._lives.close(reason)
        if self._process is not None:
            self._process.kill()
            self._process.ended()
            self._reader.join()
            self._process.close()
        error = EngineClosedError(reason)
        if not self.started.done():
            self.started.set_exception(error)
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, _Submitted):
                self._waiting.update((request.id, Opened(request, event.sink)) for request in event.requests)
            elif isinstance(event, _Asked) and event.answer.set_running_or_notify_cancel():
                event.answer.set_exception(error)
        for opened in (*self._waiting.values(), *self._turns.take_held()):
            self._refuse(opened, error)
        self._waiting.clear()
        self._tell_the_open(error)
        self._dispose(reason)
