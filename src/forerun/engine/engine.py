"""The engine for ordinary, blocking code: iterators of outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self, Unpack

from forerun.core.stats import SchedulerStats
from forerun.engine.backlog import Backlog
from forerun.engine.cache_calls import Cache
from forerun.engine.front_end import FrontEnd
from forerun.engine.intake import Batch, Conversations, Params, Prompts, RequestOptions
from forerun.engine.output import Output, OutputAssembly
from forerun.engine.questions import Counts, Stats
from forerun.engine.telemetry import EngineTelemetry
from forerun.engine.worker import QueueSink


class BlockingEngine(FrontEnd):
    """Serves any number of threads; each call returns an iterator of its own. Closing the iterator cancels the call."""

    def generate(
        self, prompts: Prompts, params: Params = None, *, raw: bool = False, **options: Unpack[RequestOptions]
    ) -> OutputIterator:
        """One finished Output a prompt, each as soon as it is finished: `index` says whose it is.

        `prompts`: text, token ids, a PromptLayout, or a list of those; `params`: for all, or one for each. Text is what
        a user says and goes through the model's chat template where it has one; `raw` continues it as it stands.
        Options: `tenant` is whose requests they are, nothing is drafted from another tenant's answers; a higher
        `priority` is admitted first, and among equals the earliest `deadline` (seconds from now until the answer should
        begin); with `reuses_cache=False` prompts are computed from scratch and nothing is kept.
        With one prompt its error is raised; among several it is the `error` of that prompt's output and the others are
        served.
        """
        return self._start(self._intake.prompts(prompts, params, raw=raw, **options), incremental=False)

    def stream(
        self, prompts: Prompts, params: Params = None, *, raw: bool = False, **options: Unpack[RequestOptions]
    ) -> OutputIterator:
        """Like `generate`, but new text and tokens as they come; the last Output of each prompt has `finish_reason`
        and `usage`. With `reports_progress=True` outputs without text say how far a prompt has been read.
        """
        return self._start(self._intake.prompts(prompts, params, raw=raw, **options), incremental=True)

    def chat(self, messages: Conversations, params: Params = None, **options: Unpack[RequestOptions]) -> OutputIterator:
        """Like `generate`, for a conversation (or several) through the model's chat template."""
        return self._start(self._intake.conversations(messages, params, **options), incremental=False)

    def _start(self, batch: Batch, *, incremental: bool) -> OutputIterator:
        backlog = Backlog(self._worker.pause, self._worker.resume) if incremental else None
        if backlog is not None:
            backlog.watch(batch.indexes)
        sink = QueueSink(backlog)
        self._worker.submit(batch.requests, sink)
        return OutputIterator(self, batch, sink, incremental=incremental)

    @property
    def cache(self) -> Cache:
        """The prefix cache: look prompts up, warm, pin, explain, clear."""
        return Cache(self._worker, self._questions, self.generate)

    def stats(self) -> SchedulerStats:
        """Counts of requests, sequences and cells, taken between two steps."""
        return self._worker.ask(Stats()).result()

    def telemetry(self) -> EngineTelemetry:
        """What the engine has done since it started."""
        return self._worker.ask(Counts()).result()

    def close(self) -> None:
        """End open requests with EngineClosedError, free the model. Safe to call again."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OutputIterator(Iterator[Output]):
    """The outputs of one call. Used by one thread; closing or dropping it cancels what is still open."""

    def __init__(self, engine: BlockingEngine, batch: Batch, sink: QueueSink, *, incremental: bool) -> None:
        self._engine = engine
        self._sink = sink
        self._ready = deque(batch.refused)
        self._assembly = OutputAssembly(batch.indexes, incremental=incremental)
        self._raises = batch.size == 1

    def __next__(self) -> Output:
        while not self._ready:
            if self._assembly.is_done:
                raise StopIteration
            self._ready.extend(self._assembly.take(self._sink.wait()))
        output = self._ready.popleft()
        if self._raises and output.error is not None:
            raise output.error
        return output

    def close(self) -> None:
        """Cancel what is still open; the iterator is then exhausted. Safe to call again, and never waits."""
        if not self._assembly.is_done:
            self._engine.abort(self._assembly.open_ids)
        self._assembly.forget_open()
        self._ready.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
