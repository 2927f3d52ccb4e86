"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.anthropic.errors import anthropic_error
from forerun.server.anthropic.job import NAMES, counted_job, message_job
from forerun.server.anthropic.output import MessageEvents
from forerun.server.body import json_body
from forerun.server.jobs import Answering
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.problems import ERROR_SHAPES, problem_of
from forerun.server.renaming import named_as
from forerun.server.serving import backend_of, serving_of, tenant_of
from forerun.server.sse import EventStream, named_event
from forerun.server.wire.messages import CountTokensRequest, MessagesRequest

router = APIRouter(tags=["Anthropic"])
ERROR_SHAPES["/v1/messages"] = anthropic_error


@router.post("/v1/messages", responses=ERRORS, openapi_extra=takes(MessagesRequest))
async def messages(request: Request, body: Annotated[MessagesRequest, json_body(MessagesRequest)]) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    serving = serving_of(request)
    serving.require_model(body.model)
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
    if body.stream:
        keep_alive = backend_of(request).settings.keep_alive
        return EventStream(_frames(answering, events), close=answering.aclose, keep_alive=keep_alive)
    return await unless_client_leaves(request, _whole(answering, events))


@router.post("/v1/messages/count_tokens", responses=ERRORS, openapi_extra=takes(CountTokensRequest))
async def count_tokens(
    request: Request, body: Annotated[CountTokensRequest, json_body(CountTokensRequest)]
) -> dict[str, int]:
    """How many tokens a prompt has: messages, system prompt and tools."""
    serving = serving_of(request)
    serving.require_model(body.model)
    return {"input_tokens": await serving.service.count_tokens(counted_job(body, tenant_of(request)))}


async def _frames(answering: Answering, events: MessageEvents) -> AsyncGenerator[bytes]:
    """Events as bytes. An error is the last one."""
    yield b"".join(named_event(event["type"], event) for event in events.begin())
    try:
        async for event in answering:
            if told := events.push(event):
                yield b"".join(named_event(one["type"], one) for one in told)
    except Exception as error:  # noqa: BLE001 (the answer has begun: whatever went wrong is told as an event)
        yield named_event("error", anthropic_error(problem_of(error)))


async def _whole(answering: Answering, events: MessageEvents) -> Response:
    """The message when it is finished. Raises what the answering raises."""
    try:
        async for event in answering:
            events.push(event)
    finally:
        await answering.aclose()
    return Response(msgspec.json.encode(events.message), media_type="application/json")
