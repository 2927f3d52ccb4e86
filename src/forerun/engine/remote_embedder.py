"""An embedder in a process of its own: started, watched, started again when it dies.

    embedding thread   embed ──► batch ──► engine process          one batch at a time
                         ◄── vectors ── [ link thread ] ◄──┘        dies: the batch ends at once

The link thread starts the processes: on Linux they end with the thread that started them.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.core.prompt import Tokens
from forerun.engine import messages
from forerun.engine.crashes import Content, CrashRecords
from forerun.engine.embedding import Vectors
from forerun.engine.health import EngineHealth, stalled_or_ready
from forerun.engine.lives import CLOSED, Lives
from forerun.engine.messages import Embed, Embedded, EmbedderReady, Failed, Loading, Report
from forerun.engine.process import Backoff, EngineProcess, EngineProgram
from forerun.engine.worker import STALL_AFTER
from forerun.errors import (
    EngineClosedError,
    EngineDiedError,
    EngineError,
    ForerunError,
    InvalidRequestError,
    OverloadedError,
)

logger = logging.getLogger(__name__)

EMBEDDING_CHILD: Final = "forerun.engine.embedding_child"


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the process computes."""

    contents: tuple[Content, ...]
    since: float
    answer: Future[Embedded]


class RemoteEmbedder:
    """Implements embedding.Embedder. One thread calls `embed`, any may call the rest."""

    def __init__(
        self,
        program: EngineProgram,
        backoff: Backoff = Backoff(),  # noqa: B008 (a value)
        *,
        stall_after: float = STALL_AFTER,
        longest_wait: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """In seconds. `stall_after`: of a batch, after which health says so; `longest_wait`: of a batch for a process
        that starts again."""
        self.started: Future[EmbedderReady] = Future()
        """What the embedder is, once it is ready for the first time; the ForerunError where it could not be built."""
        self._program = program
        self._stall_after = stall_after
        self._longest_wait = longest_wait
        self._clock = clock
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._lives = Lives(backoff, clock)
        self._process: EngineProcess | None = None
        self._batch: _Batch | None = None
        self._records = CrashRecords(clock)
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._run, name="forerun-embedding-link", daemon=True)
        self._thread.start()

    # --- any thread ----------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        return self.started.result().n_ctx

    @property
    def max_inputs(self) -> int:
        return self.started.result().max_inputs

    @property
    def max_batch_tokens(self) -> int:
        return self.started.result().max_batch_tokens

    @property
    def dimensions(self) -> int:
        return self.started.result().dimensions

    @property
    def health(self) -> EngineHealth:
        with self._changed:
            health, batch = self._lives.health, self._batch
        if not health.is_ready or batch is None:
            return health
        return stalled_or_ready(self._clock() - batch.since, self._stall_after)

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None where there is none."""
        process = self._process
        return None if process is None else process.pid

    def close(self) -> None:
        """End the process: what it computes ends with EngineClosedError. Safe to call again."""
        with self._changed:
            self._ended = self._ended or CLOSED
            self._changed.notify_all()
            if self._process is not None:
                self._process.kill()  # it holds nothing that would have to be put away
        self._thread.join()

    def __repr__(self) -> str:
        return f"RemoteEmbedder({self.health.state}, {self._records!r})"

    # --- the embedding thread ----------------------------------------------------------

    def embed(self, inputs: Sequence[Tokens]) -> Vectors:
        """A vector of length 1 for each input, shape (inputs, dimensions); waits for a process that starts again.

        Raises EngineDiedError where the process dies of it or with it, InvalidRequestError for an input that it died of
        twice, another EngineError where the batch fails or has to be computed one by one, OverloadedError where there
        is no process for too long.
        """
        contents = tuple(hashlib.sha256(tokens.tobytes()).hexdigest() for tokens in inputs)
        process, batch = self._begin(contents)
        try:
            process.send(Embed(tuple(tokens.tobytes() for tokens in inputs)))
            embedded = batch.answer.result()
        finally:
            with self._changed:
                self._batch = None
        if embedded.error is not None:
            raise messages.own_error(embedded.error)
        with self._changed:
            for content in contents:
                self._records.finished(content)
        vectors: Vectors = np.frombuffer(embedded.vectors, np.float32).reshape(len(inputs), self.dimensions)
        return vectors

    def _begin(self, contents: tuple[Content, ...]) -> tuple[EngineProcess, _Batch]:
        """The process, once it is ready, and the batch that it has from now on."""
        with self._changed:
            is_decided = self._changed.wait_for(
                lambda: self._ended is not None or self._lives.is_ready, self._longest_wait
            )
            if self._ended is not None:
                raise EngineClosedError(self._ended)
            if not is_decided:
                said = f"the engine was not ready for {self._longest_wait:g} s: {self._lives.health.reason}"
                raise OverloadedError(said, self._longest_wait)
            self._judge(contents)
            assert self._process is not None
            self._batch = _Batch(contents, self._clock(), Future())
            return self._process, self._batch

    def _judge(self, contents: Sequence[Content]) -> None:
        """What the process died of is not tried again; what it may have died of has it to itself."""
        if any(map(self._records.is_refused, contents)):
            raise InvalidRequestError(
                "input",
                "the engine's process died twice while it embedded exactly this, and is not asked again: change it, or "
                "restart the server once the cause is gone",
            )
        if len(contents) > 1 and any(map(self._records.is_suspect, contents)):
            raise EngineError("one of the inputs may be what the engine's process died of")

    # --- the link thread; what `_learn` and `_bury` call holds the lock ------------------------------------

    def _run(self) -> None:
        reason = CLOSED
        try:
            while self._ended is None:
                self._live()
                self._wait_to_restart()
            reason = self._ended
        except BaseException as error:
            logger.exception("the link to the engine process died")
            reason = f"the link to the engine process died: {type(error).__name__}: {error}"
        finally:
            self._end(reason)

    def _live(self) -> None:
        """One process, from its start to its end."""
        process = self._program.start()
        with self._changed:
            self._process = process
            self._lives.begin()
            if self._ended is not None:
                process.kill()
        try:
            while (report := process.receive()) is not None:
                self._learn(report)
        except EngineError:
            logger.exception("%r is ended", process)
            process.kill()
        how = process.ended()
        with self._changed:
            self._process = None
        process.close()
        self._bury(how)

    def _learn(self, report: Report) -> None:
        with self._changed:
            match report:
                case Loading(phase, what, share):
                    self._lives.load(phase, what, share)
                case EmbedderReady():
                    self._be_ready(report)
                case Embedded():
                    if self._batch is not None:
                        self._batch.answer.set_result(report)
                case Failed(error):
                    self._lives.say(error.message)
                    if not self.started.done():
                        self._give_up(messages.own_error(error))

    def _be_ready(self, ready: EmbedderReady) -> None:
        if not self.started.done():
            self.started.set_result(ready)
        self._lives.be_ready()
        self._changed.notify_all()

    def _bury(self, how: str) -> None:
        """The process is gone: its batch is told, and another one is started later, or none."""
        with self._changed:
            why = self._lives.why(how)
            if self._ended is None and not self.started.done():
                self._give_up(EngineDiedError(f"{why} while it was loading"))
            if self._ended is None:
                logger.error("%s", why)
                if self._batch is not None:
                    self._records.died(dict.fromkeys(self._batch.contents, 0))
                self._lives.start_later(why)
            self._tell_the_batch(EngineDiedError(why) if self._ended is None else EngineClosedError(self._ended))

    def _wait_to_restart(self) -> None:
        with self._changed:
            seconds = self._lives.health.seconds or 0.0
            self._changed.wait_for(lambda: self._ended is not None, seconds)

    def _tell_the_batch(self, error: ForerunError) -> None:
        if self._batch is not None and not self._batch.answer.done():
            self._batch.answer.set_exception(error)

    def _give_up(self, error: ForerunError) -> None:
        """It could not be built, and would not be the next time."""
        self._lives.fail(str(error))
        self._ended = str(error)
        self.started.set_exception(error)

    def _end(self, reason: str) -> None:
        with self._changed:
            self._ended = reason
            self._lives.close(reason)
            if not self.started.done():
                self.started.set_exception(EngineClosedError(reason))
            if self._process is not None:
                self._process.kill()
            self._tell_the_batch(EngineClosedError(reason))
            self._changed.notify_all()
