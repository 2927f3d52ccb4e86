"""What a running server answers with: its models, and what a request is given of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.engine.health import EngineHealth, EngineState
from forerun.errors import InvalidRequestError, OverloadedError
from forerun.server.leaving import unless_client_leaves
from forerun.server.model_entry import UNLOADED, Called, EmbeddingServing, ModelEntry, Serving, called, names_of
from forerun.server.problems import Problem, ProblemError
from forerun.server.registry import STOPPING, ModelRegistry
from forerun.server.settings import ServerSettings
from forerun.server.wire.fields import Wire

BodyT = TypeVar("BodyT", bound=Wire)
_BEST_FIRST: Final = (
    EngineState.READY,
    EngineState.UNLOADED,
    EngineState.STALLED,
    EngineState.LOADING,
    EngineState.RESTARTING,
    EngineState.FAILED,
    EngineState.CLOSED,
)
_MOST_NAMES: Final = 50
"""Of models, in a message."""


class Backend:
    """Where the server stands. Used on the event loop."""

    def __init__(self, settings: ServerSettings, models: ModelRegistry) -> None:
        self.settings = settings
        self.models = models
        self.is_stopping = False

    def stop(self) -> None:
        """Take nothing more; what is open goes on."""
        self.is_stopping = True
        self.models.stop()

    def cut_off(self) -> None:
        """End all open answers."""
        for serving in self._writing:
            serving.service.cut_off(STOPPING)

    @property
    def open_answers(self) -> int:
        """That have not ended."""
        return sum(serving.seats.open for serving in self._writing)

    @property
    def _writing(self) -> list[Serving]:
        return [entry.serving for entry in self.models.entries if isinstance(entry.serving, Serving)]

    @property
    def health(self) -> EngineHealth:
        """That of the model that stands best: with one that answers the server does."""
        each = (entry.health for entry in self.models.entries)
        return min(each, key=lambda one: _BEST_FIRST.index(one.state), default=UNLOADED)

    def called(self, name: str | None) -> Called:
        """What a request means by a name, or by none where there is but one model. Raises ProblemError (404), and
        InvalidRequestError where a name is needed."""
        entries = self.models.entries
        if name is None and len(entries) == 1:
            return Called(entries[0])
        if name is None:
            raise InvalidRequestError("model", f"is required: this server has {_told(names_of(entries))}")
        found = called(name, entries)
        if found is None:
            said = f"there is no model {name[:200]!r}; this server has {_told(names_of(entries))}"
            raise ProblemError(Problem(status=404, message=said, param="model", code="model_not_found"))
        return found

    def __repr__(self) -> str:
        return f"Backend({self.health.state}{', stopping' if self.is_stopping else ''})"


def _told(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(repr, names[:_MOST_NAMES])) + more


class Leases:
    """Around the application: a model that a request was given is its own until the last byte of its response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as leases:
            scope.setdefault("state", {})["leases"] = leases
            await self._app(scope, receive, send)


def backend_of(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


async def loaded_for(request: Request, name: str | None) -> Serving | EmbeddingServing:
    """The model of this name, loaded, for as long as the request is answered.

    Raises as `Backend.called` and `ModelRegistry.acquire`.
    """
    return await _held(request, backend_of(request).called(name).entry)


async def serving_for(request: Request, name: str | None) -> Serving:
    """The same, of a model that writes; with an adapter where its name says so, under that name. Raises ProblemError
    (400) where it embeds."""
    found = backend_of(request).called(name)
    serving = None if found.entry.model.embeds is True else await _held(request, found.entry)
    if not isinstance(serving, Serving):
        raise _wrong_model(f"{found.id} is an embedding model and writes no text: call /v1/embeddings")
    return serving if found.adapter is None else replace(serving, model=replace(serving.model, id=found.id))


async def embedding_for(request: Request, name: str) -> EmbeddingServing:
    """The same, of a model that embeds. Raises ProblemError (400) where it writes."""
    found = backend_of(request).called(name)
    serving = None if found.entry.model.embeds is False else await _held(request, found.entry)
    if not isinstance(serving, EmbeddingServing):
        raise _wrong_model(f"{found.id} is no embedding model: serve one to have embeddings")
    return serving


async def _held(request: Request, entry: ModelEntry) -> Serving | EmbeddingServing:
    """A client that leaves while the model is loaded waits no more."""
    backend = backend_of(request)
    if backend.is_stopping:
        raise OverloadedError(STOPPING, backend.settings.shutdown_timeout)

    async def held() -> Serving | EmbeddingServing:
        serving = await backend.models.acquire(entry)
        leases: ExitStack = request.state.leases
        leases.callback(backend.models.release, entry)
        return serving

    return await (held() if entry.is_open else unless_client_leaves(request, held()))


def with_adapter(request: Request, body: BodyT, name: str | None) -> BodyT:
    """A request's body with the adapter that the model's name selects. Raises InvalidRequestError where the body
    selects some as well."""
    adapter = backend_of(request).called(name).adapter
    if adapter is None:
        return body
    given: Any = getattr(body, "adapters", None)
    if given:
        said = f"the model {name!r} selects one already: name the model alone to select by this field"
        raise InvalidRequestError("adapters", said)
    return body.model_copy(update={"adapters": {adapter: 1.0}})


def _wrong_model(said: str) -> ProblemError:
    return ProblemError(Problem(status=400, message=said, param="model", code="model_not_supported"))


def tenant_of(request: Request, salt: str | None = None) -> str:
    """Whose prefixes a request may reuse: its key's, and among them those of the same `cache_salt`.

    Anthropic's and OpenAI's fields for users do not separate: they say who asks, not who may see what.
    """
    key: str = getattr(request.state, "tenant", "")
    if salt is not None and "\0" in salt:
        raise InvalidRequestError("cache_salt", "holds a character of no text (NUL)")
    return f"{key}\0{salt}" if salt else key
