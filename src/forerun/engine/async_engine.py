"""The engine for asyncio: async iterators of outputs, one wake-up of the event loop a step."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Final, Self, Unpack
from weakref import WeakKeyDictionary

from forerun.core.request import OutputDelta
from forerun.core.stats import SchedulerStats
from forerun.engine.backlog import Backlog
from forerun.engine.cache_calls import AsyncioCache
from forerun.engine.front_end import FrontEnd, FrontEndParts
from forerun.engine.intake import Batch, Conversations, Params, Prompts, RequestOptions
from forerun.engine.output import Output, OutputAssembly, merged
from forerun.engine.parts import EngineParts
from forerun.engine.questions import Counts, Stats
from forerun.engine.telemetry import EngineTelemetry
from forerun.errors import ForerunError

_MERGED_AT: Final = 64
"""Unread deltas of one request."""


class Mailbox:
    """Deltas that were not read yet, of one call's requests. Used by one event loop.

    Those of a reader who is behind are merged: what it takes then is bounded by the answer's length, not by how many
    steps it took.
    """

    __slots__ = ("_arrived", "_backlog", "_unread")

    def __init__(self, backlog: Backlog | None = None) -> None:
        self._backlog = backlog
        self._unread: dict[str, list[OutputDelta]] = {}
        self._arrived = asyncio.Event()

    def put(self, delta: OutputDelta) -> None:
        unread = self._unread.setdefault(delta.request_id, [])
        unread.append(delta)
        if len(unread) > _MERGED_AT:
            unread[:] = [merged(unread)]
        self._arrived.set()

    async def get(self) -> OutputDelta:
        """All that is unread of the request that has waited longest, as one delta."""
        while not self._unread:
            self._arrived.clear()
            await self._arrived.wait()
        delta = merged(self._unread.pop(next(iter(self._unread))))
        if self._backlog is not None:
            self._backlog.take([delta])
        return delta


class EventLoopSink:
    """Hands deltas to one event loop: a single call_soon_threadsafe a step, however many requests it serves. `backlog`
    is told what is read of streams."""

    def __init__(self, loop: asyncio.AbstractEventLoop, backlog: Backlog) -> None:
        self._loop = weakref.ref(loop)
        self._backlog = backlog
        self._mailboxes: dict[str, Mailbox] = {}

    def deliver(self, deltas: Sequence[OutputDelta]) -> bool:
        """Called by the engine thread. False once the event loop is closed."""
        loop = self._loop()
        if loop is None:
            return False
        self._backlog.add(deltas)
        try:
            loop.call_soon_threadsafe(self._sort, deltas)
        except RuntimeError:
            return False
        return True

    def _sort(self, deltas: Sequence[OutputDelta]) -> None:
        for delta in deltas:
            find = self._mailboxes.get if delta.finish_reason is None else self._mailboxes.pop
            mailbox = find(delta.request_id, None)
            if mailbox is not None:
                mailbox.put(delta)

    def open(self, request_ids: Collection[str], *, is_stream: bool = False) -> Mailbox:
        """A mailbox for the deltas of these requests; those of a stream are paused while its reader is behind."""
        if is_stream:
            self._backlog.watch(request_ids)
        mailbox = Mailbox(self._backlog if is_stream else None)
        self._mailboxes.update(dict.fromkeys(request_ids, mailbox))
        return mailbox

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what still comes for these requests. Safe from any thread, since iterators are collected on any."""
        for request_id in request_ids:
            self._mailboxes.pop(request_id, None)

    @property
    def open_requests(self) -> int:
        return len(self._mailboxes)


class AsyncioEngine(FrontEnd):
    """As the blocking engine, for tasks: iterators are async, and cancelling the task cancels the call.

    Not tied to one event loop. A call begins when its iterator is first awaited.
    """

    def __init__(self, parts: EngineParts | FrontEndParts) -> None:
        super().__init__(parts)
        self._sinks: WeakKeyDictionary[asyncio.AbstractEventLoop, EventLoopSink] = WeakKeyDictionary()

    def generate(
        self, prompts: Prompts, params: Params = None, *, raw: bool = False, **options: Unpack[RequestOptions]
    ) -> AsyncOutputIterator:
        """One finished Output a prompt, each as soon as it is finished; errors as in Engine.generate."""
        return AsyncOutputIterator(
            self, lambda: self._intake.prompts(prompts, params, raw=raw, **options), incremental=False
        )

    def stream(
        self, prompts: Prompts, params: Params = None, *, raw: bool = False, **options: Unpack[RequestOptions]
    ) -> AsyncOutputIterator:
        """New text and tokens as they come. The last Output of each prompt has `finish_reason` and `usage`."""
        return AsyncOutputIterator(
            self, lambda: self._intake.prompts(prompts, params, raw=raw, **options), incremental=True
        )

    def chat(
        self, messages: Conversations, params: Params = None, **options: Unpack[RequestOptions]
    ) -> AsyncOutputIterator:
        """Like `generate`, for a conversation (or several) through the model's chat template."""
        build = functools.partial(self._intake.conversations, messages, params, **options)
        return AsyncOutputIterator(self, build, incremental=False)

    def submit(self, batch: Batch, *, is_stream: bool = False) -> tuple[EventLoopSink, Mailbox]:
        """Queue a batch; its deltas come to the mailbox, on the running event loop. Raises as Worker.submit does."""
        loop = asyncio.get_running_loop()
        sink = self._sinks.get(loop)
        if sink is None:
            sink = self._sinks[loop] = EventLoopSink(loop, Backlog(self._worker.pause, self._worker.resume))
        mailbox = sink.open(batch.indexes, is_stream=is_stream)
        try:
            self._worker.submit(batch.requests, sink)
        except ForerunError:
            sink.forget(batch.indexes)
            raise
        return sink, mailbox

    @property
    def cache(self) -> AsyncioCache:
        """The prefix cache: look prompts up, warm, pin, explain, clear."""
        return AsyncioCache(self._worker, self._questions, self.generate)

    async def stats(self) -> SchedulerStats:
        """Counts of requests, sequences and cells, taken between two steps."""
        return await asyncio.wrap_future(self._worker.ask(Stats()))

    async def telemetry(self) -> EngineTelemetry:
        """What the engine has done since it started."""
        return await asyncio.wrap_future(self._worker.ask(Counts()))

    async def close(self) -> None:
        """End open requests with EngineClosedError, free the model. Safe to call again."""
        await asyncio.to_thread(self._worker.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncOutputIterator(AsyncIterator[Output]):
    """The outputs of one call. Used by one task; closing, cancelling or dropping it cancels what is still open."""

    def __init__(self, engine: AsyncioEngine, build: Callable[[], Batch], *, incremental: bool) -> None:
        self._engine = engine
        self._build: Callable[[], Batch] | None = build
        self._incremental = incremental
        self._assembly = OutputAssembly({}, incremental=incremental)
        self._ready: deque[Output] = deque()
        self._raises = False
        self._sink: EventLoopSink | None = None
        self._mailbox = Mailbox()

    async def __anext__(self) -> Output:
        try:
            output = await self._next()
        except asyncio.CancelledError:
            self._abandon()
            raise
        if self._raises and output.error is not None:
            raise output.error
        return output

    async def _next(self) -> Output:
        if self._build is not None:
            build, self._build = self._build, None
            self._begin(await asyncio.to_thread(build))
        while not self._ready:
            if self._assembly.is_done:
                raise StopAsyncIteration
            self._ready.extend(self._assembly.take([await self._mailbox.get()]))
        return self._ready.popleft()

    def _begin(self, batch: Batch) -> None:
        self._raises = batch.size == 1
        self._ready.extend(batch.refused)
        self._sink, self._mailbox = self._engine.submit(batch, is_stream=self._incremental)
        self._assembly = OutputAssembly(batch.indexes, incremental=self._incremental)

    async def aclose(self) -> None:
        """Cancel what is still open; the iterator is then exhausted. Safe to call again, and never waits."""
        self._abandon()

    def _abandon(self) -> None:
        self._build = None
        open_ids = self._assembly.open_ids
        if self._sink is not None and open_ids:
            self._sink.forget(open_ids)
            self._engine.abort(open_ids)
        self._assembly.forget_open()
        self._ready.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()

    def __del__(self) -> None:
        self._abandon()
