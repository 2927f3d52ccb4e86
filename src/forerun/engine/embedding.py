"""The engine of embedding models: a thread that computes what waits in batches, and a queue in front of it.

    any thread   submit ──► jobs, in turn ──► [ fill a batch | embed | hand vectors out ]   embedding thread
                    ◄──── Future of all of a job's vectors ◄────┘

Jobs take turns input by input, so that one with thousands of texts does not keep one with a single text waiting.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.core.prompt import Tokens
from forerun.engine.health import READY, EngineHealth, EngineState
from forerun.engine.parts import TextVocabulary
from forerun.engine.tokenizer import Tokenizer
from forerun.errors import (
    EngineClosedError,
    EngineDiedError,
    EngineError,
    ForerunError,
    InvalidRequestError,
    OverloadedError,
    StepFailedError,
)

logger = logging.getLogger(__name__)

Vectors: TypeAlias = NDArray[np.float32]
_CLOSED = "the engine was closed"
_RATE_WEIGHT = 0.2
"""Of the latest batch, in the measured rate."""
_UNKNOWN_WAIT = 2.0
"""Seconds to come back after while no batch has been measured."""


class Embedder(Protocol):
    """Turns texts into vectors. Used by one thread."""

    @property
    def n_ctx(self) -> int:
        """Tokens of one input at most."""
        ...

    @property
    def max_inputs(self) -> int:
        """Inputs of a batch at most."""
        ...

    @property
    def max_batch_tokens(self) -> int:
        """Tokens of a batch at most; no less than n_ctx."""
        ...

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""
        ...

    def embed(self, inputs: Sequence[Tokens]) -> Vectors:
        """A vector of length 1 for each input, shape (inputs, dimensions).

        Raises EngineError, InvalidRequestError for an input that is not to be tried again, OverloadedError where it
        cannot be tried now.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingParts:
    """Everything an embedding engine owns. Its thread takes the embedder over and frees all with `dispose`."""

    embedder: Embedder
    vocabulary: TextVocabulary
    model_name: str
    max_queue: int = 64
    """Jobs that may be open; one more is refused."""
    health: Callable[[], EngineHealth] = lambda: READY
    """The embedder's; any thread."""
    interrupt: Callable[[], None] = lambda: None
    """Cuts a running batch short; any thread. Called when the engine closes."""
    dispose: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic


class _Job:
    """Inputs that arrived together. Owned by the thread once it is queued."""

    __slots__ = ("answer", "done", "inputs", "next", "vectors")

    def __init__(self, inputs: Sequence[Tokens], dimensions: int) -> None:
        self.inputs = inputs
        self.answer: Future[Vectors] = Future()
        self.vectors = np.empty((len(inputs), dimensions), np.float32)
        self.next = 0
        """The first input that is in no batch yet."""
        self.done = 0

    def put(self, index: int, vector: NDArray[np.float32]) -> None:
        self.vectors[index] = vector
        self.done += 1
        if self.done == len(self.inputs):
            self.end(None)

    def end(self, error: Exception | None) -> None:
        """Tell who waits, unless nobody does any more."""
        try:
            if error is None:
                self.answer.set_result(self.vectors)
            else:
                self.answer.set_exception(error)
        except InvalidStateError:  # cancelled, or already told of an error
            pass


_Item: TypeAlias = tuple[_Job, int]


class EmbeddingEngine:
    """Serves any number of threads and tasks. Owns a thread; close it, or drop it."""

    def __init__(self, parts: EmbeddingParts) -> None:
        self.model_name = parts.model_name
        self.n_ctx = parts.embedder.n_ctx
        """Tokens of one input at most."""
        self.dimensions = parts.embedder.dimensions
        self.tokenizer = Tokenizer(parts.vocabulary)
        self._work = _Work(parts, self.tokenizer.retire)
        self._closes_when_dropped = weakref.finalize(self, self._work.close)

    @property
    def health(self) -> EngineHealth:
        return self._work.health

    def submit(self, inputs: Sequence[Tokens]) -> Future[Vectors]:
        """The vectors of the inputs, in order, once they are all computed; shape (inputs, dimensions).

        Each has 1 to n_ctx tokens, ids of the vocabulary: ValueError else. Cancelling the future drops what is not
        computed yet. Raises OverloadedError, EngineClosedError; a failed input is the future's StepFailedError.
        """
        size = self.tokenizer.size
        for tokens in inputs:
            if not 0 < len(tokens) <= self.n_ctx or tokens.max() >= size:
                raise ValueError(f"an input has 1 to {self.n_ctx} tokens below {size}")
        return self._work.submit(inputs)

    def close(self) -> None:
        """End what is open with EngineClosedError, free the model. Safe to call again."""
        self._work.close()

    def __repr__(self) -> str:
        return f"EmbeddingEngine({self.model_name}, {self._work!r})"


class _Work:
    """The thread, and the queue that it shares with everybody else."""

    def __init__(self, parts: EmbeddingParts, retire: Callable[[str], None]) -> None:
        self._embedder = parts.embedder
        self._max_queue = parts.max_queue
        self._embedder_health = parts.health
        self._interrupt = parts.interrupt
        self._dispose = parts.dispose
        self._clock = parts.clock
        self._retire = retire
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._jobs: deque[_Job] = deque()
        """With inputs that are in no batch yet, in turn."""
        self._open: set[_Job] = set()
        self._waiting_tokens = 0
        self._tokens_per_second: float | None = None
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._run, name="forerun-embedding", daemon=True)
        self._thread.start()

    # --- any thread ----------------------------------------------------------

    @property
    def health(self) -> EngineHealth:
        if self._ended is None:
            return self._embedder_health()
        return EngineHealth(EngineState.CLOSED if self._ended == _CLOSED else EngineState.FAILED, self._ended)

    def submit(self, inputs: Sequence[Tokens]) -> Future[Vectors]:
        job = _Job(inputs, self._embedder.dimensions)
        if not inputs:
            job.end(None)
            return job.answer
        with self._changed:
            if self._ended is not None:
                raise EngineClosedError(self._ended)
            if len(self._open) >= self._max_queue:
                raise OverloadedError(
                    f"{len(self._open)} requests are open, at most {self._max_queue} may be", self._seconds_left()
                )
            self._open.add(job)
            self._waiting_tokens += _tokens(job)
            self._jobs.append(job)
            self._changed.notify()
        job.answer.add_done_callback(lambda _: self._forget(job))
        return job.answer

    def _forget(self, job: _Job) -> None:
        with self._changed:
            self._open.discard(job)

    def _seconds_left(self) -> float:
        rate = self._tokens_per_second
        return _UNKNOWN_WAIT if rate is None else self._waiting_tokens / rate

    def close(self) -> None:
        with self._changed:
            self._ended = self._ended or _CLOSED
            self._changed.notify()
        self._interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __repr__(self) -> str:
        return f"{len(self._open)} open, {self._waiting_tokens} tokens wait"

    # --- the embedding thread ----------------------------------------------------------

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._compute(batch)
        except BaseException as error:
            logger.exception("the embedding thread died with %d open requests", len(self._open))
            with self._changed:
                self._ended = f"the embedding thread died: {type(error).__name__}: {error}"
        finally:
            self._end()

    def _next_batch(self) -> list[_Item]:
        """What is computed next; sleeps while nothing waits. Empty to end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._ended is not None)
                if self._ended is not None:
                    return []
                if batch := self._filled():
                    return batch

    def _filled(self) -> list[_Item]:
        """As many inputs as fit, one of each job in turn; what was cancelled is dropped."""
        batch: list[_Item] = []
        room = self._embedder.max_batch_tokens
        while self._jobs and len(batch) < self._embedder.max_inputs:
            job = self._jobs[0]
            if job.answer.done():
                self._jobs.popleft()
                self._waiting_tokens -= _tokens(job)
                continue
            size = len(job.inputs[job.next])
            if size > room:
                break
            room -= size
            self._waiting_tokens -= size
            batch.append((job, job.next))
            job.next += 1
            self._jobs.rotate(-1)
            if job.next == len(job.inputs):
                self._jobs.pop()
        return batch

    def _compute(self, batch: Sequence[_Item]) -> None:
        begun = self._clock()
        try:
            vectors = self._embedder.embed([job.inputs[index] for job, index in batch])
        except (EngineError, InvalidRequestError) as error:
            self._retry_alone(batch, error)
            return
        except OverloadedError as error:
            for job, _ in batch:
                job.end(error)
            return
        self._learn_rate(sum(len(job.inputs[index]) for job, index in batch), self._clock() - begun)
        for (job, index), vector in zip(batch, vectors, strict=True):
            job.put(index, vector)

    def _retry_alone(self, batch: Sequence[_Item], error: EngineError | InvalidRequestError) -> None:
        """Who fails alone fails; the others of a failed batch do not notice."""
        if len(batch) == 1:
            job, index = batch[0]
            job.end(_own_failure(index, error))
            return
        for item in batch:
            if not item[0].answer.done():
                self._compute([item])

    def _learn_rate(self, tokens: int, seconds: float) -> None:
        if seconds <= 0:
            return
        rate, known = tokens / seconds, self._tokens_per_second
        self._tokens_per_second = rate if known is None else known + _RATE_WEIGHT * (rate - known)

    def _end(self) -> None:
        with self._changed:
            reason, jobs = self._ended or _CLOSED, list(self._open)
            self._jobs.clear()
        for job in jobs:
            job.end(EngineClosedError(reason))
        self._retire(reason)
        try:
            self._embedder.close()
            self._dispose()
        except Exception:
            logger.exception("the embedding engine could not free everything it held")


def _own_failure(index: int, error: EngineError | InvalidRequestError) -> ForerunError:
    """What a job is told of an input that failed alone."""
    match error:
        case InvalidRequestError():
            return InvalidRequestError(f"input[{index}]", error.reason)
        case EngineDiedError() | EngineClosedError():
            return error
    return StepFailedError(f"input {index} could not be embedded: {error}")


def _tokens(job: _Job) -> int:
    """Of the inputs that are in no batch yet."""
    return sum(len(tokens) for tokens in job.inputs[job.next :])
