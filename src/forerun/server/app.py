"""The HTTP application: its routes, and around them who may call and how much."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from forerun.errors import ForerunError
from forerun.server import cache_routes, chat_completions, completions, embeddings, state_routes, text_routes
from forerun.server.about import VERSION
from forerun.server.anthropic import routes as anthropic_routes
from forerun.server.observing import observe
from forerun.server.openapi import with_bodies
from forerun.server.problems import answer_error
from forerun.server.responses import routes as responses_routes
from forerun.server.security import ApiKeys, BodyLimit, HeaderLimit, KeyCheck, LocalCheck
from forerun.server.serving import Backend, Leases

_ROUTERS: Final = (
    chat_completions.router,
    completions.router,
    embeddings.router,
    responses_routes.router,
    anthropic_routes.router,
    state_routes.router,
    text_routes.router,
    cache_routes.router,
)
_NO_ICON: Final = "data:,"
_DESCRIPTION: Final = "OpenAI's and Anthropic's APIs on llama.cpp models. Fields: docs/openai-compat.md."


def create_app(backend: Backend) -> FastAPI:
    """The application on a backend, whose models may still be loading."""
    settings = backend.settings
    # Swagger's scripts come from the server itself: its page works without internet, and tells nobody that it is read.
    app = FastAPIOffline(
        title="Forerun", version=VERSION, description=_DESCRIPTION, redoc_url=None, favicon_url=_NO_ICON
    )
    app.state.backend = backend
    app.state.settings = settings
    for router in _ROUTERS:
        app.include_router(router)
    for kind in (ForerunError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer_error)
    keys = ApiKeys(settings.api_keys)
    # The last one added is the outermost: a preflight request of a browser carries no key.
    app.add_middleware(Leases)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(KeyCheck, keys=keys)
    if settings.is_loopback and not keys:
        app.add_middleware(LocalCheck, names=(settings.host,), origins=settings.cors_origins)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(HeaderLimit, max_bytes=settings.max_header_bytes)
    observe(app, backend)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = with_bodies(FastAPI.openapi(app), app)
    return app.openapi_schema
