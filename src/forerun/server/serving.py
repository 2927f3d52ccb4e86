"""What a running server answers with, and why not yet while it loads."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from forerun.engine.async_engine import AsyncioEngine
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


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded engine and what stands in front of it."""

    engine: AsyncioEngine
    service: ChatService
    seats: Seats
    model: ServedModel

    def require_model(self, name: str) -> None:
        """Raise ProblemError (404) for a model that is not the one loaded."""
        if name not in self.model.names:
            known = ", ".join(map(repr, self.model.names))
            said = f"the model {name[:200]!r} is not loaded; this server has {known}"
            raise ProblemError(Problem(status=404, message=said, param="model", code="model_not_found"))


class Backend:
    """Where the server stands. Used on the event loop; progress may come from any thread."""

    def __init__(self, settings: ServerSettings, serving: Serving | None = None) -> None:
        self.settings = settings
        self.serving = serving
        """None until the model's vocabulary is loaded; its engine may still be loading then."""
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
    def health(self) -> EngineHealth:
        return self._health if self.serving is None else self.serving.engine.health

    def require(self) -> Serving:
        """Raises OverloadedError while there is no engine yet and while the server stops, EngineClosedError where
        there is none any more."""
        if self.is_stopping:
            raise OverloadedError("the server is being stopped", self.settings.shutdown_timeout)
        health = self.health
        if self.serving is None and health.state is EngineState.LOADING:
            raise OverloadedError(
                f"the model is still loading ({health.loading} {health.progress:.0%})", _LOADING_AGAIN
            )
        if self.serving is None or not health.is_alive:
            raise EngineClosedError(health.reason or f"the engine is {health.state}")
        return self.serving

    def __repr__(self) -> str:
        return f"Backend({self.health.state}{', stopping' if self.is_stopping else ''})"


def backend_of(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


def serving_of(request: Request) -> Serving:
    """What answers this request. Raises while there is nothing yet."""
    return backend_of(request).require()


def tenant_of(request: Request, salt: str | None = None) -> str:
    """Whose prefixes a request may reuse: its key's, and among them those of the same `cache_salt`.

    Anthropic's and OpenAI's fields for users do not separate: they say who asks, not who may see what.
    """
    key: str = getattr(request.state, "tenant", "")
    if salt is not None and "\0" in salt:
        raise InvalidRequestError("cache_salt", "holds a character of no text (NUL)")
    return f"{key}\0{salt}" if salt else key
