"""`POST /v1/chat/completions`: OpenAI's chat."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.body import json_body
from forerun.server.chat_answers import ChatAnswer
from forerun.server.chat_jobs import chat_job
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.sending import sent
from forerun.server.serving import serving_for, tenant_of, with_adapter
from forerun.server.wire.chat import ChatRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions", responses=ERRORS, openapi_extra=takes(ChatRequest))
async def chat_completions(request: Request, body: Annotated[ChatRequest, json_body(ChatRequest)]) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    body = with_adapter(request, body, body.model)
    serving = await serving_for(request, body.model)
    job = chat_job(body, tenant_of(request, body.cache_salt))
    answering = await unless_client_leaves(request, serving.service.start(job))
    answer = ChatAnswer(answering, body, serving.model.id, serving.engine.tokenizer.bytes_of)
    return await sent(request, answering, answer, streams=bool(body.stream))
