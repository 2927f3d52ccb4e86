"""Errors as Anthropic's clients expect them."""

from __future__ import annotations

from typing import Any, Final

from forerun.server.problems import Problem

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    408: "timeout_error",
}


def anthropic_error(problem: Problem) -> dict[str, Any]:
    """The body of an error, and the data of an error event."""
    kind = _TYPES.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}
