"""What a running server answers with, and why not yet while it loads."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.embedding import EmbeddingEngine
from forerun.engine.health import EngineHealth, EngineState
from forerun.errors import EngineClosedError, InvalidRequestError, OverloadedError
from forerun.server.jobs import ChatService
from forerun.server.problems import Problem, ProblemError
from forerun.server.seats import Seats
from forerun.server.settings import ServerSettings

_LOADING_AGAIN: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model under the names by which requests may call it."""

    id: str
    """What /v1/models and answers call it."""
    file_name: str
    aliases: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        stem = self.file_name.removesuffix(".gguf")
        return tuple(dict.fromkeys((self.id, *self.aliases, self.file_name, stem)))

    def require(self, name: str) -> None:
        """Raise ProblemError (404) for a name that is not this model's."""
        if name not in self.names:
            known = ", ".join(map(repr, self.names))
            said = f"the model {name[:200]!r} is not loaded; this server has {known}"
            raise ProblemError(Problem(status=404, message=said, param="model", code="model_not_found"))


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded engine and what stands in front of it."""

    engine: AsyncioEngine
    service: ChatService
    seats: Seats
    model: ServedModel

    def require_model(self, name: str) -> None:
        """Raise ProblemError (404) for a model that is not the one loaded."""
        self.model.require(name)


@dataclass(frozen=True, slots=True)
class EmbeddingServing:
    """A loaded engine of an embedding model."""

    engine: EmbeddingEngine
    model: ServedModel


class Backend:
    """Where the server stands. Used on the event loop; progress may come from any thread."""

    def __init__(self, settings: ServerSettings, serving: Serving | None = None) -> None:
        self.settings = settings
        self.serving = serving
        """None until the model's vocabulary is loaded; its engine may still be loading then."""
        self.embedding: EmbeddingServing | None = None
        """What is served instead of a model that writes."""
        self.is_stopping = False
        self._health = EngineHealth(EngineState.LOADING)

    def loading(self, what: str, share: float) -> None:
        """Before there is an engine to ask."""
        self._health = EngineHealth(EngineState.LOADING, loading=what, progress=share)

    def failed(self, reason: str) -> None:
        """There will be no engine."""
        self._health = EngineHealth(EngineState.FAILED, reason)

    def cut_off(self) -> None:
        """End all open answers: the server stops."""
        if self.serving is not None:
            self.serving.service.cut_off("the server is being stopped")

    @property
    def open_answers(self) -> int:
        """That have not ended."""
        return 0 if self.serving is None else self.serving.seats.open

    @property
    def health(self) -> EngineHealth:
        loaded = self.loaded
        return self._health if loaded is None else loaded.engine.health

    @property
    def loaded(self) -> Serving | EmbeddingServing | None:
        """Whatever model there is."""
        return self.serving or self.embedding

    def require(self) -> Serving:
        """A model that writes. Raises as `require_loaded`, and ProblemError (400) where there is one that embeds."""
        loaded = self.require_loaded()
        if isinstance(loaded, EmbeddingServing):
            raise _wrong_model(f"{loaded.model.id} is an embedding model and writes no text: call /v1/embeddings")
        return loaded

    def require_embedding(self) -> EmbeddingServing:
        """A model that embeds. Raises as `require_loaded`, and ProblemError (400) where there is one that writes."""
        loaded = self.require_loaded()
        if isinstance(loaded, Serving):
            raise _wrong_model(f"{loaded.model.id} is no embedding model: serve one to have embeddings")
        return loaded

    def require_loaded(self) -> Serving | EmbeddingServing:
        """Raises OverloadedError while there is no engine yet and while the server stops, EngineClosedError where
        there is none any more."""
        if self.is_stopping:
            raise OverloadedError("the server is being stopped", self.settings.shutdown_timeout)
        loaded, health = self.loaded, self.health
        if loaded is None and health.state is EngineState.LOADING:
            raise OverloadedError(
                f"the model is still loading ({health.loading} {health.progress:.0%})", _LOADING_AGAIN
            )
        if loaded is None or not health.is_alive:
            raise EngineClosedError(health.reason or f"the engine is {health.state}")
        return loaded

    def __repr__(self) -> str:
        return f"Backend({self.health.state}{', stopping' if self.is_stopping else ''})"


def _wrong_model(said: str) -> ProblemError:
    return ProblemError(Problem(status=400, message=said, param="model", code="model_not_supported"))


def backend_of(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


def serving_of(request: Request) -> Serving:
    """What answers this request. Raises while there is nothing yet."""
    return backend_of(request).require()


def embedding_of(request: Request) -> EmbeddingServing:
    """What embeds for this request. Raises while there is nothing yet, and where the model writes instead."""
    return backend_of(request).require_embedding()


def tenant_of(request: Request, salt: str | None = None) -> str:
    """Whose prefixes a request may reuse: its key's, and among them those of the same `cache_salt`.

    Anthropic's and OpenAI's fields for users do not separate: they say who asks, not who may see what.
    """
    key: str = getattr(request.state, "tenant", "")
    if salt is not None and "\0" in salt:
        raise InvalidRequestError("cache_salt", "holds a character of no text (NUL)")
    return f"{key}\0{salt}" if salt else key
