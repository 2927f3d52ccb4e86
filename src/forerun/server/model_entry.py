"""One of the models that a server has: what it is called, how it is loaded, and how it stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.embedding import EmbeddingEngine
from forerun.engine.health import EngineHealth, EngineState
from forerun.engine.loading import LoadProgress
from forerun.engine.telemetry import EngineTelemetry
from forerun.errors import EngineClosedError, ForerunError
from forerun.server.engine_counts import EngineCounter
from forerun.server.jobs import ChatService
from forerun.server.problems import Problem, ProblemError
from forerun.server.residency import Footprint
from forerun.server.seats import Seats

_TRIED_AGAIN: Final = 10.0
"""Seconds after which a model that could not be loaded is tried again, where somebody asks for it."""
UNLOADED: Final = EngineHealth(EngineState.UNLOADED)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under the names by which requests may call it."""

    id: str
    """What /v1/models and answers call it."""
    file_name: str = ""
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    """Its LoRA adapters; with one it is called ID:ADAPTER."""
    embeds: bool | None = None
    """None: not known before it is loaded."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def given_names(self) -> tuple[str, ...]:
        """Names that mean it, whatever others there are."""
        return tuple(dict.fromkeys((self.id, *self.aliases)))

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names that mean it where they mean no other."""
        return tuple(filter(None, (self.file_name, self.file_name.removesuffix(".gguf"))))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.given_names, *self.file_names)))

    def adapted_id(self, adapter: str) -> str:
        """What the model is called with an adapter."""
        return f"{self.id}:{adapter}"


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded engine and what stands in front of it."""

    engine: AsyncioEngine
    service: ChatService
    seats: Seats
    model: ServedModel


@dataclass(frozen=True, slots=True)
class EmbeddingServing:
    """A loaded engine of an embedding model."""

    engine: EmbeddingEngine
    model: ServedModel


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that is loaded."""

    serving: Serving | EmbeddingServing
    close: Callable[[], Awaitable[None]]
    """Ends what is open and frees all of it."""


class ModelSource(Protocol):
    """How one model is loaded."""

    @property
    def footprint(self) -> Footprint:
        """What it will take, as far as that is known."""
        ...

    def open(self, model: ServedModel, progress: LoadProgress) -> Opened:
        """Load it; blocks. Raises ForerunError, and what `progress` raises: nothing is left of it then."""
        ...


class ModelEntry:
    """Used on the event loop by the registry, which owns it; others look."""

    def __init__(self, model: ServedModel, source: ModelSource) -> None:
        self.model = model
        self.source = source
        self.opened: Opened | None = None
        self.loads = 0
        """How often it was loaded."""
        self.leases = 0
        """Requests that have it, from when they were given it until their response has ended."""
        self.last_used = 0.0
        self.is_leaving = False
        """It is about to be unloaded: nobody is given it any more."""
        self.waiters: list[asyncio.Future[Serving | EmbeddingServing]] = []
        self.counter = EngineCounter(self._telemetry)
        self._loading: EngineHealth | None = None
        self._failure: tuple[str, float] | None = None

    @property
    def serving(self) -> Serving | EmbeddingServing | None:
        return None if self.opened is None else self.opened.serving

    @property
    def health(self) -> EngineHealth:
        """How it stands; any thread."""
        opened, loading, failure = self.opened, self._loading, self._failure
        if opened is not None:
            return opened.serving.engine.health
        if loading is not None:
            return loading
        return UNLOADED if failure is None else EngineHealth(EngineState.FAILED, failure[0])

    @property
    def is_open(self) -> bool:
        """Whether it can be given to requests at once."""
        return self.opened is not None and not self.is_leaving

    def loading(self, health: EngineHealth) -> None:
        """How far it is; any thread."""
        self._loading, self._failure = health, None

    def loaded(self, opened: Opened) -> None:
        self.opened, self._loading = opened, None
        self.model = opened.serving.model
        self.loads += 1

    def given_up(self) -> None:
        """It is not loaded after all."""
        self._loading = None

    def unload(self) -> Opened:
        """From now on it is not loaded; whoever calls closes it."""
        opened, self.opened = self.opened, None
        assert opened is not None
        return opened

    def failed(self, error: ForerunError, now: float) -> None:
        """It could not be loaded: those that wait are told, and others for a while."""
        self._loading, self._failure = None, (str(error), now + _TRIED_AGAIN)
        for waiter in self.waiters:
            if not waiter.done():
                refusal = self._not_loaded(_TRIED_AGAIN)
                refusal.__cause__ = error
                waiter.set_exception(refusal)

    def require_loadable(self, now: float) -> None:
        """Raise ProblemError (503) where it could not be loaded a moment ago."""
        if self._failure is not None and now < self._failure[1]:
            raise self._not_loaded(self._failure[1] - now)

    def _not_loaded(self, seconds: float) -> ProblemError:
        reason = self._failure[0] if self._failure is not None else ""
        said = f"the model {self.model.id!r} could not be loaded: {reason}"
        return ProblemError(
            Problem(status=503, message=said, kind="server_error", code="model_not_loaded", retry_after=seconds)
        )

    def hold(self, now: float) -> Serving | EmbeddingServing:
        """Give it to a request. Raises EngineClosedError where its engine has ended for good."""
        assert self.opened is not None
        engine = self.opened.serving.engine
        if not engine.health.is_alive:
            raise EngineClosedError(engine.health.reason or f"the engine is {engine.health.state}")
        self.leases += 1
        self.last_used = now
        return self.opened.serving

    def give_to_waiters(self, now: float) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                try:
                    waiter.set_result(self.hold(now))
                except ForerunError as error:
                    waiter.set_exception(error)

    async def _telemetry(self) -> EngineTelemetry:
        serving = self.serving
        if not isinstance(serving, Serving):
            raise EngineClosedError(f"{self.model.id} is not loaded")
        return await serving.engine.telemetry()

    def check_integrity(self) -> None:
        assert self.leases >= 0, f"{self.leases} leases of {self.model.id}"
        assert self.opened is not None or not (self.leases or self.is_leaving), f"{self!r} is had, but not loaded"

    def __repr__(self) -> str:
        return f"ModelEntry({self.model.id}, {self.health.state}, {self.leases} leases, {len(self.waiters)} wait)"


@dataclass(frozen=True, slots=True)
class Called:
    """What a name of a request means."""

    entry: ModelEntry
    adapter: str | None = None

    @property
    def id(self) -> str:
        model = self.entry.model
        return model.id if self.adapter is None else model.adapted_id(self.adapter)


def called(name: str, entries: Sequence[ModelEntry]) -> Called | None:
    """What is called by a name: what it was given to first, then what alone it describes."""
    for entry in entries:
        if name in entry.model.given_names:
            return Called(entry)
    for entry in entries:
        for adapter in entry.model.adapters:
            if name == entry.model.adapted_id(adapter):
                return Called(entry, adapter)
    described = [Called(entry) for entry in entries if name in entry.model.file_names]
    described += [Called(entry, name) for entry in entries if name in entry.model.adapters]
    return described[0] if len(described) == 1 else None


def names_of(entries: Sequence[ModelEntry]) -> tuple[str, ...]:
    """All names that mean something, for messages."""
    plain = [name for entry in entries for name in entry.model.names]
    adapted = [entry.model.adapted_id(adapter) for entry in entries for adapter in entry.model.adapters]
    return tuple(name for name in dict.fromkeys((*plain, *adapted)) if called(name, entries) is not None)
