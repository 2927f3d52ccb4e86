"""`POST /v1/responses`: OpenAI's Responses API."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.body import json_body
from forerun.server.jobs import Answering
from forerun.server.leaving import unless_client_leaves
from forerun.server.model_entry import Serving
from forerun.server.openapi import ERRORS, takes
from forerun.server.renaming import named_as
from forerun.server.responses.job import NAMES, opening, response_job
from forerun.server.responses.output import ResponseEvents
from forerun.server.sending import NamedEventsAnswer, sent
from forerun.server.serving import serving_for, tenant_of, with_adapter
from forerun.server.wire.responses import ResponsesRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/responses", responses=ERRORS, openapi_extra=takes(ResponsesRequest))
async def responses(request: Request, body: Annotated[ResponsesRequest, json_body(ResponsesRequest)]) -> Response:
    """Answer a conversation, whole or as a stream of events. Nothing is stored."""
    body = with_adapter(request, body, body.model)
    serving = await serving_for(request, body.model)
    job = response_job(body, tenant_of(request, body.cache_salt))
    with named_as(NAMES):
        answering = await unless_client_leaves(request, serving.service.start(job))
    events = _events(body, answering, serving)
    answer = NamedEventsAnswer(answering, events, events.response)
    return await sent(request, answering, answer, streams=bool(body.stream))


def _events(body: ResponsesRequest, answering: Answering, serving: Serving) -> ResponseEvents:
    return ResponseEvents(
        opening(body, f"resp_{answering.id}", serving.model.id, int(time.time())),
        bytes_of=serving.engine.tokenizer.bytes_of if body.wants_logprobs else None,
        reasoning_as_summary=bool(body.reasoning and (body.reasoning.summary or body.reasoning.generate_summary)),
    )
