"""The thread that waits for the disk, so that the engine's does not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Result = TypeVar("Result")


class _Job(Generic[Result]):
    __slots__ = ("_result", "_then", "_work")

    def __init__(self, work: Callable[[], Result], then: Callable[[Result | Exception], None]) -> None:
        self._work = work
        self._then = then
        self._result: Result | Exception = RuntimeError("given up: the disk was too slow")

    def run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told where the job came from
            self._result = error

    def end(self) -> None:
        self._then(self._result)


class DiskWorker:
    """Does jobs one after another on a thread of its own. All methods are called by one other thread, the owner.

    A job has two halves: `work` runs on the worker's thread, `then` is told what became of it on the owner's, inside
    `finish`.
    """

    def __init__(self, name: str = "forerun-cache") -> None:
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._done: deque[_Job[object]] = deque()
        self._something_done = threading.Condition()
        self._gives_up = threading.Event()
        self._open = 0
        # A disk that never answers must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether every job was told of."""
        return not self._open

    def submit(self, work: Callable[[], Result], then: Callable[[Result | Exception], None]) -> None:
        """Queue a job behind all others. `then` gets the exception that `work` raised in place of a result."""
        self._open += 1
        self._jobs.put(_Job(work, then))  # type: ignore[arg-type]  # a job's two halves agree with each other

    def finish(self) -> None:
        """Tell of what was done since the last call."""
        while self._done:
            self._open -= 1
            self._done.popleft().end()

    def wait(self, seconds: float) -> None:
        """Return once there is something to tell, all is told, or after so many seconds."""
        with self._something_done:
            self._something_done.wait_for(lambda: self._done or self.is_idle, seconds)

    def close(self, seconds: float) -> bool:
        """Do what is queued, for so many seconds; the rest fails. Whether all was done. No jobs may follow."""
        self._jobs.put(None)
        self._thread.join(seconds)
        self._gives_up.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not self._gives_up.is_set():
                job.run()
            with self._something_done:
                self._done.append(job)
                self._something_done.notify_all()
