"""What is between the commands of a front end and the engine thread: grammars are compiled, off that thread.

submit ──┬─ without a grammar ─────────────────────► worker
         └─ with one ──► a few threads ─ compiled ──►
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from forerun.core.request import FinishReason, OutputDelta, Request
from forerun.engine.intake import constrained
from forerun.engine.parts import Constrain
from forerun.engine.worker import EngineWorker, Sink
from forerun.errors import EngineClosedError, EngineError, ForerunError, InvalidRequestError

_THREADS: Final = 2


class CompilingIntake:
    """Hands requests on to a worker, those with a grammar once it is compiled. Used by one thread.

    Requests that come together and have grammars are handed on together, once the last one is compiled.
    An abort ends a request wherever it is.
    """

    def __init__(self, worker: EngineWorker, constrain: Constrain | None) -> None:
        self._worker = worker
        self._constrain = constrain
        self._threads = ThreadPoolExecutor(_THREADS, "forerun-grammar")
        self._compiling: dict[str, Sink] = {}
        self._changing = threading.Lock()

    def submit(self, requests: Sequence[Request], sink: Sink) -> None:
        """Hand requests on; what cannot be compiled is refused to `sink`."""
        ready = [request for request in requests if request.params.grammar is None]
        waiting = [request for request in requests if request.params.grammar is not None]
        if ready:
            self._hand_on(ready, sink)
        if waiting:
            with self._changing:
                self._compiling.update((request.id, sink) for request in waiting)
            self._threads.submit(self._compile, waiting, sink)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests with finish reason ABORT."""
        request_ids = tuple(request_ids)
        with self._changing:
            ended = [(key, sink) for key in request_ids if (sink := self._compiling.pop(key, None)) is not None]
        for request_id, sink in ended:
            sink.deliver([OutputDelta(request_id, "", (), finish_reason=FinishReason.ABORT)])
        self._worker.abort(request_ids)

    def close(self) -> None:
        """End what is being compiled."""
        with self._changing:
            ended, self._compiling = self._compiling, {}
        for request_id, sink in ended.items():
            sink.deliver([_refusal(request_id, EngineClosedError("the engine was closed"))])
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, requests: Sequence[Request], sink: Sink) -> None:
        compiled: list[Request] = []
        for request in requests:
            try:
                compiled.append(self._compiled(request))
            except ForerunError as error:
                self._refuse(request.id, sink, error)
            except Exception as error:  # noqa: BLE001 (a compiler of somebody else's: one request fails, not all)
                self._refuse(request.id, sink, EngineError(f"grammar: {type(error).__name__}: {error}"))
        with self._changing:
            wanted = [request for request in compiled if self._compiling.pop(request.id, None) is not None]
            # Within the lock, so that an abort finds a request either here or with the worker.
            if wanted:
                self._hand_on(wanted, sink)

    def _compiled(self, request: Request) -> Request:
        if self._constrain is None:
            raise InvalidRequestError("grammar", "this engine enforces none: leave it out")
        return constrained(request, self._constrain)

    def _refuse(self, request_id: str, sink: Sink, error: ForerunError) -> None:
        with self._changing:
            is_wanted = self._compiling.pop(request_id, None) is not None
        if is_wanted:
            sink.deliver([_refusal(request_id, error)])

    def _hand_on(self, requests: Sequence[Request], sink: Sink) -> None:
        try:
            self._worker.submit(requests, sink)
        except EngineClosedError as error:
            sink.deliver([_refusal(request.id, error) for request in requests])


def _refusal(request_id: str, error: ForerunError) -> OutputDelta:
    return OutputDelta(request_id, "", (), finish_reason=FinishReason.ERROR, error=error)
