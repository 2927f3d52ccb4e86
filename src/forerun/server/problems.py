"""Every error as HTTP: one mapping to a status, then the JSON that the clients of each API expect."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from forerun.errors import (
    ContextExceededError,
    EngineClosedError,
    EngineDiedError,
    ForerunError,
    InvalidRequestError,
    OverloadedError,
    RequestTimeoutError,
)
from forerun.server.records import current_record

logger = logging.getLogger(__name__)

_STARTED_AGAIN: Final = 1.0
"""Seconds after which an engine process that died takes requests, which wait until it is ready."""
_UNAVAILABLE_AGAIN: Final = 5.0
"""Seconds after which an engine that ended may be back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with a request, or was with answering it."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    """OpenAI's `type`."""
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None


class ProblemError(ForerunError):
    """A problem of HTTP alone: a body that is no JSON, a model nobody knows."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def problem_of(error: BaseException) -> Problem:
    """What clients are told of an error. What nobody foresaw keeps its details to itself: they may be content."""
    match error:
        case ProblemError():
            return error.problem
        case ContextExceededError():
            return Problem(status=400, message=str(error), param=error.field, code="context_length_exceeded")
        case InvalidRequestError():
            return Problem(status=400, message=str(error), param=error.field, code="invalid_value")
        case OverloadedError():
            return _server_problem(503, error, "overloaded", error.retry_after)
        case EngineDiedError():  # an EngineError that may be sent again
            return _server_problem(503, error, "engine_died", _STARTED_AGAIN)
        case EngineClosedError():
            return _server_problem(503, error, "engine_unavailable", _UNAVAILABLE_AGAIN)
        case RequestTimeoutError():
            return _server_problem(408, error, "timeout")
        case ForerunError():
            return _server_problem(500, error, "engine_error")
    return _problem_of_http(error)


def _problem_of_http(error: BaseException) -> Problem:
    """What comes from the web framework."""
    match error:
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            return Problem(status=400, message=f"{where}: {first['msg']}", param=where or None, code="invalid_value")
        case HTTPException():
            said = _SAID.get(error.status_code, str(error.detail))
            return Problem(status=error.status_code, message=said, code=_CODES.get(error.status_code))
    return Problem(status=500, message="the server failed; its log says how", kind="server_error", code="internal")


_CODES: Final = {404: "not_found", 405: "method_not_allowed"}
_SAID: Final = {
    404: "this server has no such route; GET /docs shows all it has",
    405: "this route takes another method; GET /docs shows which",
}


def _server_problem(status: int, error: ForerunError, code: str, retry_after: float | None = None) -> Problem:
    return Problem(status=status, message=str(error), kind="server_error", code=code, retry_after=retry_after)


ErrorShape: TypeAlias = Callable[[Problem], Mapping[str, Any]]
"""What one API's clients expect as the body of an error."""


def openai_error(problem: Problem) -> dict[str, Any]:
    return {
        "error": {
            "message": problem.message,
            "type": problem.kind,
            "param": problem.param,
            "code": problem.code,
        }
    }


def error_event(error: Exception) -> bytes:
    """An error in a stream that has begun: the last event of OpenAI's streams."""
    problem = problem_of(error)
    if problem.code == "internal":
        logger.error("a stream failed", exc_info=error)
    return b"data: " + msgspec.json.encode(openai_error(problem)) + b"\n\n"


ERROR_SHAPES: Final[dict[str, ErrorShape]] = {}
"""By the beginning of the path; any other path gets OpenAI's."""


def error_shape(path: str) -> ErrorShape:
    return next((shape for start, shape in ERROR_SHAPES.items() if path.startswith(start)), openai_error)


def problem_response(problem: Problem, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """The whole response; `path` says which API was called."""
    given = dict(headers or {})
    if problem.retry_after is not None:
        given["retry-after"] = str(max(1, math.ceil(problem.retry_after)))
    body = msgspec.json.encode(error_shape(path)(problem))
    return Response(body, problem.status, given, media_type="application/json")


async def answer_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for all errors."""
    problem = problem_of(error)
    current_record().fail(problem.code or str(problem.status))
    if problem.status == 500:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    headers = error.headers if isinstance(error, HTTPException) else None
    return problem_response(problem, request.url.path, headers)
