"""`POST /v1/chat/completions`: OpenAI's chat."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.body import json_body
from forerun.server.chat_answers import ChatStream, whole_answer
from forerun.server.chat_jobs import chat_job
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.serving import backend_of, serving_of, tenant_of
from forerun.server.sse import EventStream
from forerun.server.wire.chat import ChatRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions", responses=ERRORS, openapi_extra=takes(ChatRequest))
async def chat_completions(request: Request, body: Annotated[ChatRequest, json_body(ChatRequest)]) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    serving = serving_of(request)
    serving.require_model(body.model)
    job = chat_job(body, tenant_of(request, body.cache_salt))
    answering = await unless_client_leaves(request, serving.service.start(job))
    if body.stream:
        stream = ChatStream(answering, body, serving.model.id, serving.engine.tokenizer.bytes_of)
        keep_alive = backend_of(request).settings.keep_alive
        return EventStream(stream.frames(), close=answering.aclose, keep_alive=keep_alive)
    whole = whole_answer(answering, body, serving.model.id, serving.engine.tokenizer.bytes_of)
    return await unless_client_leaves(request, whole)
