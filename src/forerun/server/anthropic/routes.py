"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.anthropic.errors import anthropic_error
from forerun.server.anthropic.job import NAMES, counted_job, message_job
from forerun.server.anthropic.output import MessageEvents
from forerun.server.body import json_body
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.problems import ERROR_SHAPES
from forerun.server.renaming import named_as
from forerun.server.sending import NamedEventsAnswer, sent
from forerun.server.serving import serving_for, tenant_of, with_adapter
from forerun.server.wire.messages import CountTokensRequest, MessagesRequest

router = APIRouter(tags=["Anthropic"])
ERROR_SHAPES["/v1/messages"] = anthropic_error


@router.post("/v1/messages", responses=ERRORS, openapi_extra=takes(MessagesRequest))
async def messages(request: Request, body: Annotated[MessagesRequest, json_body(MessagesRequest)]) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    body = with_adapter(request, body, body.model)
    serving = await serving_for(request, body.model)
    job = message_job(body, tenant_of(request, body.cache_salt))
    with named_as(NAMES):
        answering = await unless_client_leaves(request, serving.service.start(job))
    events = MessageEvents(
        answering.id,
        serving.model.id,
        prompt_tokens=answering.prompt_tokens,
        max_tokens=body.max_tokens,
        hides_thinking=body.thinking is not None and body.thinking.display == "omitted",
    )
    answer = NamedEventsAnswer(answering, events, events.message)
    return await sent(request, answering, answer, streams=bool(body.stream))


@router.post("/v1/messages/count_tokens", responses=ERRORS, openapi_extra=takes(CountTokensRequest))
async def count_tokens(
    request: Request, body: Annotated[CountTokensRequest, json_body(CountTokensRequest)]
) -> dict[str, int]:
    """How many tokens a prompt has: messages, system prompt and tools."""
    serving = await serving_for(request, body.model)
    return {"input_tokens": await serving.service.count_tokens(counted_job(body, tenant_of(request)))}
