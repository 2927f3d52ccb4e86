"""The prefix cache, to be asked and told: what would hit, compute ahead, keep, why not more, forget.

Everything concerns the prefixes of the caller's own key and salt alone.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request

from forerun.server.body import json_body
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.problems import Problem, ProblemError
from forerun.server.serving import serving_for, tenant_of, with_adapter
from forerun.server.text_routes import layout_of
from forerun.server.wire.tools import CachePrompt, ClearRequest, ExplainRequest, PinRequest

router = APIRouter(prefix="/cache", tags=["cache"], responses=ERRORS)


class Lookup(BaseModel):
    prompt_tokens: int
    cached_tokens: int
    resident_tokens: int = Field(description="In the KV memory.")
    host_tokens: int = Field(description="In host memory.")
    disk_tokens: int = Field(description="On disk.")
    expected_ms: float | None = Field(description="To the first token, with nothing else to do.")


class Warmed(BaseModel):
    prompt_tokens: int
    cached_tokens: int = Field(description="Those that were there already.")
    prefill_ms: float


class Pinned(BaseModel):
    pinned_tokens: int


class Explanation(BaseModel):
    prompt_tokens: int
    cached_tokens: int
    known_tokens: int = Field(description="First tokens of the prompt that were seen before, kept or not.")
    why: str
    prompt_text: str = Field(description="The prompt around where it differs from what was seen before.")
    other_text: str = Field(description="How what was seen before went on there.")
    evicted_for: str


class Cleared(BaseModel):
    dropped: int = Field(description="Pieces of prefixes.")


@router.post("/lookup", openapi_extra=takes(CachePrompt))
async def lookup(request: Request, body: Annotated[CachePrompt, json_body(CachePrompt)]) -> Lookup:
    """How much of a prompt would be reused now. Changes nothing."""
    body = with_adapter(request, body, body.model)
    serving = await serving_for(request, body.model)
    layout = await layout_of(serving, body)
    found = await serving.engine.cache.lookup(layout, **_whose(request, body))
    return Lookup(
        prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached_tokens,
        resident_tokens=found.resident_tokens,
        host_tokens=found.host_tokens,
        disk_tokens=found.disk_tokens,
        expected_ms=found.expected_ms,
    )


@router.post("/warm", openapi_extra=takes(CachePrompt))
async def warm(request: Request, body: Annotated[CachePrompt, json_body(CachePrompt)]) -> Warmed:
    """Compute a prompt, so that later ones that begin alike find it."""
    body = with_adapter(request, body, body.model)
    serving = await serving_for(request, body.model)
    layout = await layout_of(serving, body)
    with serving.seats.taken(1):
        usage = await unless_client_leaves(request, serving.engine.cache.warm(layout, **_whose(request, body)))
    return Warmed(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, prefill_ms=usage.prefill_ms)


@router.post("/pin", openapi_extra=takes(PinRequest))
async def pin(request: Request, body: Annotated[PinRequest, json_body(PinRequest)]) -> Pinned:
    """Keep what is stored of a prompt in host memory for a while. Warm first what may not be there."""
    body = with_adapter(request, body, body.model)
    serving = await serving_for(request, body.model)
    layout = await layout_of(serving, body)
    tokens = await serving.engine.cache.pin(layout, body.seconds, **_whose(request, body))
    return Pinned(pinned_tokens=tokens)


@router.post("/explain", openapi_extra=takes(ExplainRequest))
async def explain(request: Request, body: Annotated[ExplainRequest, json_body(ExplainRequest)]) -> Explanation:
    """Why no more of an answered request's prompt was reused."""
    request_id = f"{body.id.rpartition('-')[2].rpartition('_')[2]}-{body.choice}"
    serving = await serving_for(request, body.model)
    found = await serving.engine.cache.explain(request_id)
    if found is None:
        said = "no such answer is remembered: give the id of a recent one"
        raise ProblemError(Problem(status=404, message=said, param="id", code="not_found"))
    return Explanation(
        prompt_tokens=found.report.prompt_tokens,
        cached_tokens=found.report.cached_tokens,
        known_tokens=found.report.known_tokens,
        why=found.report.why.value,
        prompt_text=found.prompt_text,
        other_text=found.other_text,
        evicted_for=found.report.evicted_for,
    )


@router.post("/clear", openapi_extra=takes(ClearRequest))
async def clear(request: Request, body: Annotated[ClearRequest, json_body(ClearRequest)]) -> Cleared:
    """Forget what a model cached for the caller's key and this salt, in memory and on disk."""
    serving = await serving_for(request, body.model)
    dropped = await serving.engine.cache.clear(tenant=tenant_of(request, body.cache_salt))
    return Cleared(dropped=dropped)


def _whose(request: Request, body: CachePrompt) -> dict[str, Any]:
    return {"tenant": tenant_of(request, body.cache_salt), "adapters": body.adapters or {}}
