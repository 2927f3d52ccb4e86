"""What the server is and how it is: models, properties, health."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.health import EngineHealth, EngineState
from forerun.engine.loading import LoadPhase
from forerun.media.kind import MediaKind
from forerun.server.about import VERSION
from forerun.server.model_entry import Called, ModelEntry, Serving
from forerun.server.openapi import ERRORS
from forerun.server.serving import Backend, backend_of

router = APIRouter()

_OK = frozenset({EngineState.READY, EngineState.UNLOADED})
"""Requests are answered, be it after loading."""


class Model(BaseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "forerun"
    parent: str | None = Field(default=None, description="Of a LoRA adapter: the model it belongs to.")
    max_model_len: int | None = Field(
        description="Tokens of a prompt and its answer together; null while it is not loaded."
    )
    aliases: list[str]
    status: str = Field(description="ok, unloaded (loaded when it is asked for), loading, stalled, restarting, failed.")


class ModelList(BaseModel):
    object: str = "list"
    data: list[Model]


class Progress(BaseModel):
    phase: str = Field(description="files, target, draft, contexts, projector or warm-up.")
    what: str
    share: float


class ModelHealth(BaseModel):
    """How one model stands."""

    status: str = Field(description="ok, unloaded, loading, stalled, restarting, failed, closed or stopping.")
    reason: str | None = None
    loading: Progress | None = None
    attempt: int | None = Field(
        default=None, description="How often the engine was started again since it last was ready."
    )
    retry_in: float | None = Field(default=None, description="Seconds until it is started again.")


class Health(ModelHealth):
    """How the model stands that stands best; `ok` comes with status 200, everything else with 503."""

    models: dict[str, ModelHealth] = Field(description="Each of the models, by its name.")


def _cards(entry: ModelEntry) -> Iterator[Model]:
    """A model, and the same with each of its adapters."""
    model = entry.model
    yield _card(Called(entry), [name for name in model.names if name != model.id])
    for adapter in model.adapters:
        yield _card(Called(entry, adapter), [])


def _card(found: Called, aliases: list[str]) -> Model:
    entry, serving = found.entry, found.entry.serving
    return Model(
        id=found.id,
        created=entry.model.created,
        parent=None if found.adapter is None else entry.model.id,
        max_model_len=None if serving is None else serving.engine.n_ctx,
        aliases=aliases,
        status=_status(entry.health),
    )


def _status(health: EngineHealth) -> str:
    return "ok" if health.is_ready else str(health.state)


@router.get("/", include_in_schema=False)
async def start() -> Response:
    """For who opens the address in a browser."""
    return RedirectResponse("docs")


@router.get("/v1/models", tags=["OpenAI"], responses=ERRORS)
async def models(request: Request) -> ModelList:
    """The models, loaded or not, and each with each of its LoRA adapters."""
    return ModelList(data=[card for entry in backend_of(request).models.entries for card in _cards(entry)])


@router.get("/v1/models/{model:path}", tags=["OpenAI"], responses=ERRORS)
async def model(request: Request, model: str) -> Model:
    """A model, by any of its names."""
    found = backend_of(request).called(model)
    return next(card for card in _cards(found.entry) if card.id == found.id)


@router.get("/health", tags=["state"], responses={503: {"model": Health}}, response_model=Health)
async def health(request: Request) -> Response:
    """Whether requests are answered now. Needs no API key."""
    found = health_of(backend_of(request))
    return JSONResponse(found.model_dump(exclude_none=True), 200 if found.status == "ok" else 503)


def health_of(backend: Backend) -> Health:
    each = {entry.model.id: _model_health(entry.health) for entry in backend.models.entries}
    if backend.is_stopping:
        return Health(status="stopping", models=each)
    best = backend.health
    shown = _model_health(best).model_dump()
    return Health(**shown | {"status": "ok"} if best.state in _OK else shown, models=each)


def _model_health(health: EngineHealth) -> ModelHealth:
    if health.state is EngineState.LOADING:
        phase = health.phase or LoadPhase.FILES
        loading = Progress(phase=phase, what=health.loading, share=round(health.progress, 3))
        return ModelHealth(status="loading", loading=loading)
    is_back_later = health.state is EngineState.RESTARTING
    return ModelHealth(
        status=_status(health),
        reason=health.reason,
        attempt=health.attempt if is_back_later else None,
        retry_in=health.seconds if is_back_later else None,
    )


@router.get("/props", tags=["state"], responses=ERRORS)
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """What the server was started with, as far as clients need to know, and a model: the one that is named, or that
    there is alone."""
    backend = backend_of(request)
    entries, settings = backend.models.entries, backend.settings
    own = _model_props(backend.called(model).entry) if model is not None or len(entries) == 1 else {}
    return {
        "version": VERSION,
        **own,
        "max_queue": settings.max_queue,
        "max_body_bytes": settings.max_body_bytes,
        "timeout": settings.timeout,
        "models": {entry.model.id: _status(entry.health) for entry in entries},
    }


def _model_props(entry: ModelEntry) -> dict[str, Any]:
    """What is only known of a loaded model is null before."""
    model, serving = entry.model, entry.serving
    writing = serving.engine if isinstance(serving, Serving) else None
    return {
        "model": model.id,
        "model_file": model.file_name,
        "aliases": list(model.aliases),
        "adapters": list(model.adapters),
        "n_ctx": None if serving is None else serving.engine.n_ctx,
        "n_vocab": None if serving is None else serving.engine.tokenizer.size,
        "has_chat_template": None if serving is None else writing is not None and writing.has_chat_template,
        "embeds": model.embeds,
        "modalities": None if serving is None else _modalities(writing),
    }


def _modalities(engine: AsyncioEngine | None) -> dict[str, bool]:
    kinds = frozenset() if engine is None else engine.media_kinds
    return {"vision": MediaKind.IMAGE in kinds, "audio": MediaKind.AUDIO in kinds}
