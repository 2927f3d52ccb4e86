"""What the server is and how it is: models, properties, health."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from forerun.engine.health import EngineState
from forerun.media.picture import MediaKind
from forerun.server.about import VERSION
from forerun.server.openapi import ERRORS
from forerun.server.serving import Backend, EmbeddingServing, Serving, backend_of

router = APIRouter()

_WORDS = {EngineState.READY: "ok"}


class Model(BaseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "forerun"
    max_model_len: int = Field(description="Tokens of a prompt and its answer together.")
    aliases: list[str]


class ModelList(BaseModel):
    object: str = "list"
    data: list[Model]


class Progress(BaseModel):
    what: str
    share: float


class Health(BaseModel):
    """`ok` comes with status 200, everything else with 503."""

    status: str = Field(description="ok, loading, stalled, restarting, failed, closed or stopping.")
    reason: str | None = None
    loading: Progress | None = None
    attempt: int | None = Field(
        default=None, description="How often the engine was started again since it last was ready."
    )
    retry_in: float | None = Field(default=None, description="Seconds until it is started again.")


def _model(serving: Serving | EmbeddingServing) -> Model:
    model = serving.model
    aliases = [name for name in model.names if name != model.id]
    return Model(id=model.id, created=model.created, max_model_len=serving.engine.n_ctx, aliases=aliases)


@router.get("/", include_in_schema=False)
async def start() -> Response:
    """For who opens the address in a browser."""
    return RedirectResponse("docs")


@router.get("/v1/models", tags=["OpenAI"], responses=ERRORS)
async def models(request: Request) -> ModelList:
    """The loaded model."""
    return ModelList(data=[_model(backend_of(request).require_loaded())])


@router.get("/v1/models/{model:path}", tags=["OpenAI"], responses=ERRORS)
async def model(request: Request, model: str) -> Model:
    """The loaded model, by any of its names."""
    serving = backend_of(request).require_loaded()
    serving.model.require(model)
    return _model(serving)


@router.get("/health", tags=["state"], responses={503: {"model": Health}}, response_model=Health)
async def health(request: Request) -> Response:
    """Whether requests are answered now. Needs no API key."""
    found = health_of(backend_of(request))
    return JSONResponse(found.model_dump(exclude_none=True), 200 if found.status == "ok" else 503)


def health_of(backend: Backend) -> Health:
    state = backend.health
    if backend.is_stopping:
        return Health(status="stopping")
    if state.state is EngineState.LOADING:
        return Health(status="loading", loading=Progress(what=state.loading, share=round(state.progress, 3)))
    is_back_later = state.state is EngineState.RESTARTING
    return Health(
        status=_WORDS.get(state.state, str(state.state)),
        reason=state.reason,
        attempt=state.attempt if is_back_later else None,
        retry_in=state.seconds if is_back_later else None,
    )


@router.get("/props", tags=["state"], responses=ERRORS)
async def props(request: Request) -> dict[str, Any]:
    """What the server was started with, as far as clients need to know."""
    loaded, settings = backend_of(request).require_loaded(), backend_of(request).settings
    kinds = loaded.engine.media_kinds if isinstance(loaded, Serving) else frozenset()
    return {
        "version": VERSION,
        "model": loaded.model.id,
        "model_file": loaded.model.file_name,
        "aliases": list(loaded.model.aliases),
        "n_ctx": loaded.engine.n_ctx,
        "n_vocab": loaded.engine.tokenizer.size,
        "max_queue": settings.max_queue,
        "max_body_bytes": settings.max_body_bytes,
        "timeout": settings.timeout,
        "has_chat_template": isinstance(loaded, Serving) and loaded.engine.has_chat_template,
        "embeds": isinstance(loaded, EmbeddingServing),
        "modalities": {"vision": MediaKind.IMAGE in kinds, "audio": False},
    }
