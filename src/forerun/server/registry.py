"""The models of a server: loaded when somebody asks for one, the least recently used unloaded where there is no room.

    request ──► acquire ── is loaded ─────────────────────────────────► its response ──► release
                   └── waits ──► [ one task: make room, load ] ──► all that wait

One model is loaded or unloaded at a time, in the order in which they were first asked for. A model that has to leave is
given to nobody any more and leaves when the last response that has it has ended: whoever asks for it meanwhile waits
for its next turn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from forerun.engine.health import EngineHealth, EngineState
from forerun.engine.loading import LoadPhase, LoadProgress
from forerun.errors import (
    EngineClosedError,
    EngineError,
    ForerunError,
    InvalidConfigError,
    OverloadedError,
    RequestTimeoutError,
)
from forerun.server.model_entry import EmbeddingServing, ModelEntry, Opened, Serving
from forerun.server.problems import ProblemError
from forerun.server.residency import Resident, who_leaves

logger = logging.getLogger(__name__)

_LAST_LOOK: Final = 0.5
"""Seconds that an engine gets to say what it counted before it is closed."""
_LOADING_AGAIN: Final = 5.0
"""Seconds after which those who were not let wait may come again."""
STOPPING: Final = "the server is being stopped"


def _nobody(_phase: LoadPhase, _what: str, _share: float) -> None:
    pass


class ModelRegistry:
    """Owns the entries. Used on one event loop."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        *,
        max_loaded: int | None = None,
        max_waiting: int = 64,
        patience: float | None = None,
        free: Callable[[], int | None] = lambda: None,
        progress: LoadProgress = _nobody,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_loaded`: models in memory at a time; `max_waiting`: requests that may wait for one of them, `patience`:
        seconds that they wait at most. `free` tells bytes of memory, None where the system does not. `progress` is told
        of every load, from threads. Raises InvalidConfigError where a name is given twice."""
        self.entries = tuple(entries)
        self._max_loaded = max_loaded
        self._max_waiting = max_waiting
        self._patience = patience
        self._free = free
        self._progress = progress
        self._clock = clock
        self._wanted: list[ModelEntry] = []
        """What is to be loaded; the first one is being loaded, or waits for room."""
        self._mover: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._stopped = threading.Event()
        _require_own_names(self.entries)

    # --- requests ----------------------------------------------------------

    async def acquire(self, entry: ModelEntry) -> Serving | EmbeddingServing:
        """The model, loaded, for the caller until `release`. Waits while it is loaded.

        Raises OverloadedError where too many wait already or the server stops, RequestTimeoutError, ProblemError where
        it cannot be loaded, EngineClosedError where its engine has ended for good.
        """
        self._require_running()
        if entry.is_open:
            return entry.hold(self._clock())
        entry.require_loadable(self._clock())
        if len(entry.waiters) >= self._max_waiting:
            said = f"{len(entry.waiters)} requests wait for {entry.model.id!r} to be loaded, no more may"
            raise OverloadedError(said, _LOADING_AGAIN)
        return await self._loaded(entry, self._patience)

    async def load(self, entry: ModelEntry) -> None:
        """Have a model loaded, however long that takes. Raises the ForerunError where it cannot be."""
        self._require_running()
        try:
            await self._loaded(entry, None)
        except ProblemError as error:
            raise error.__cause__ or error from None
        self.release(entry)

    async def _loaded(self, entry: ModelEntry, patience: float | None) -> Serving | EmbeddingServing:
        waiter: asyncio.Future[Serving | EmbeddingServing] = asyncio.get_running_loop().create_future()
        entry.waiters.append(waiter)
        self._want(entry)
        try:
            async with asyncio.timeout(patience):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(entry)  # it was given, and nobody is there to take it
            if isinstance(error, TimeoutError):
                said = f"{entry.model.id!r} was not loaded in time, within {patience:g} s"
                raise RequestTimeoutError(said) from None
            raise
        finally:
            entry.waiters.remove(waiter)
            self._changed.set()

    def release(self, entry: ModelEntry) -> None:
        """A response that had the model has ended."""
        entry.leases -= 1
        entry.last_used = self._clock()
        self._changed.set()

    def _require_running(self) -> None:
        if self._stopped.is_set():
            raise OverloadedError(STOPPING, _LOADING_AGAIN)

    # --- loading and unloading ----------------------------------------------------------

    def _want(self, entry: ModelEntry) -> None:
        if entry not in self._wanted:
            self._wanted.append(entry)
        if self._mover is None or self._mover.done():
            self._mover = asyncio.create_task(self._move())

    async def _move(self) -> None:
        while self._wanted:
            entry = self._wanted[0]
            try:
                await self._serve_waiters(entry)
            except ForerunError as error:
                if not self._stopped.is_set():
                    logger.warning("%s could not be loaded: %s", entry.model.id, error)
                entry.failed(error, self._clock())
            except Exception as error:
                logger.exception("%s could not be loaded", entry.model.id)
                entry.failed(EngineError(f"{type(error).__name__}: {error}"), self._clock())
            finally:
                self._wanted.pop(0)

    async def _serve_waiters(self, entry: ModelEntry) -> None:
        """Give the model to all that wait for it, loaded where it is not. Raises ForerunError."""
        if entry.opened is None:
            if not await self._made_room(entry):
                return
            await self._load(entry)
        entry.give_to_waiters(self._clock())

    async def _made_room(self, entry: ModelEntry) -> bool:
        """Whether somebody still waits for the model once there is room for it."""
        entry.loading(EngineHealth(EngineState.LOADING, phase=LoadPhase.FILES, loading="waiting for room"))
        while entry.waiters and (leaver := self._leaver(entry)) is not None:
            await self._unload(leaver, entry)
        if not entry.waiters:
            entry.given_up()
        return bool(entry.waiters)

    def _leaver(self, entry: ModelEntry) -> ModelEntry | None:
        loaded = {one.model.id: one for one in self.entries if one.opened is not None}
        residents = [Resident(id_, one.source.footprint, one.leases > 0, one.last_used) for id_, one in loaded.items()]
        chosen = who_leaves(residents, entry.source.footprint, most=self._max_loaded, free=self._free())
        return None if chosen is None else loaded[chosen]

    async def _unload(self, leaver: ModelEntry, entry: ModelEntry) -> None:
        """As soon as no response has it any more; not at all where nobody waits for `entry` any more, or another model
        can leave at once."""
        leaver.is_leaving = True
        try:
            while leaver.leases and entry.waiters and not self._can_leave_at_once(entry):
                self._changed.clear()
                await self._changed.wait()
            if entry.waiters:
                await leaver.counter.counts(_LAST_LOOK)
        finally:
            leaver.is_leaving = False
        if leaver.leases or not entry.waiters:
            leaver.give_to_waiters(self._clock())
            return
        logger.info("%s is unloaded to make room for %s", leaver.model.id, entry.model.id)
        await leaver.unload().close()

    def _can_leave_at_once(self, entry: ModelEntry) -> bool:
        leaver = self._leaver(entry)
        return leaver is None or not leaver.leases

    async def _load(self, entry: ModelEntry) -> None:
        def progress(phase: LoadPhase, what: str, share: float) -> None:
            if self._stopped.is_set():
                raise EngineClosedError(STOPPING)
            entry.loading(EngineHealth(EngineState.LOADING, phase=phase, loading=what, progress=share))
            self._progress(phase, what, share)

        began = self._clock()
        opened: Opened = await asyncio.to_thread(entry.source.open, entry.model, progress)
        entry.loaded(opened)
        logger.info("%s is loaded, in %.1f s", entry.model.id, self._clock() - began)

    # --- the end ----------------------------------------------------------

    def stop(self) -> None:
        """Load nothing more: what is being loaded is given up, and who waits is refused."""
        self._stopped.set()
        for entry in self.entries:
            for waiter in entry.waiters:
                if not waiter.done():
                    waiter.set_exception(OverloadedError(STOPPING, _LOADING_AGAIN))
        self._changed.set()

    async def close(self) -> None:
        """End everything that is open and free all models. Safe to call again."""
        self.stop()
        if self._mover is not None:
            await asyncio.wait([self._mover])
        loaded = [entry for entry in self.entries if entry.opened is not None]
        await asyncio.gather(*(entry.unload().close() for entry in loaded))

    def check_integrity(self) -> None:
        for entry in self.entries:
            entry.check_integrity()

    def __repr__(self) -> str:
        return f"ModelRegistry({list(self.entries)!r})"


def _require_own_names(entries: Sequence[ModelEntry]) -> None:
    names: set[str] = set()
    for entry in entries:
        model = entry.model
        own = {*model.given_names, *map(model.adapted_id, model.adapters)}
        if twice := sorted(own & names):
            raise InvalidConfigError("model", f"two models are called {twice[0]!r}: give each a name of its own")
        names |= own
