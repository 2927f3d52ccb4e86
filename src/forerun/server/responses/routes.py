"""`POST /v1/responses`: OpenAI's Responses API."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.body import json_body
from forerun.server.jobs import Answering
from forerun.server.leaving import unless_client_leaves
from forerun.server.openapi import ERRORS, takes
from forerun.server.problems import problem_of
from forerun.server.renaming import named_as
from forerun.server.responses.job import NAMES, opening, response_job
from forerun.server.responses.output import ResponseEvents
from forerun.server.serving import Serving, backend_of, serving_of, tenant_of
from forerun.server.sse import EventStream, named_event
from forerun.server.wire.responses import ResponsesRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/responses", responses=ERRORS, openapi_extra=takes(ResponsesRequest))
async def responses(request: Request, body: Annotated[ResponsesRequest, json_body(ResponsesRequest)]) -> Response:
    """Answer a conversation, whole or as a stream of events. Nothing is stored."""
    serving = serving_of(request)
    serving.require_model(body.model)
    job = response_job(body, tenant_of(request, body.cache_salt))
    with named_as(NAMES):
        answering = await unless_client_leaves(request, serving.service.start(job))
    events = _events(body, answering, serving)
    if body.stream:
        keep_alive = backend_of(request).settings.keep_alive
        return EventStream(_frames(answering, events), close=answering.aclose, keep_alive=keep_alive)
    return await unless_client_leaves(request, _whole(answering, events))


def _events(body: ResponsesRequest, answering: Answering, serving: Serving) -> ResponseEvents:
    return ResponseEvents(
        opening(body, f"resp_{answering.id}", serving.model.id, int(time.time())),
        bytes_of=serving.engine.tokenizer.bytes_of if body.wants_logprobs else None,
        reasoning_as_summary=bool(body.reasoning and (body.reasoning.summary or body.reasoning.generate_summary)),
    )


async def _frames(answering: Answering, events: ResponseEvents) -> AsyncGenerator[bytes]:
    """Events as bytes. The last one says how it ended."""
    yield b"".join(named_event(event["type"], event) for event in events.begin())
    try:
        async for event in answering:
            if told := events.push(event):
                yield b"".join(named_event(one["type"], one) for one in told)
    except Exception as error:  # noqa: BLE001 (the answer has begun: whatever went wrong is told as an event)
        yield b"".join(named_event(one["type"], one) for one in events.fail(problem_of(error).message))


async def _whole(answering: Answering, events: ResponseEvents) -> Response:
    """The response when it is finished. Raises what the answering raises."""
    try:
        async for event in answering:
            events.push(event)
    finally:
        await answering.aclose()
    return Response(msgspec.json.encode(events.response), media_type="application/json")
