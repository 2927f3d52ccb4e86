"""Ends work whose client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from forerun.server.problems import Problem, ProblemError

T = TypeVar("T")
_CLIENT_LEFT = 499
"""nginx's status for it; nobody reads it, logs do."""


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects first: ProblemError then."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_left(request))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait([working])
            raise ProblemError(Problem(status=_CLIENT_LEFT, message="the client has left", code="client_left"))
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _left(request: Request) -> None:
    await request.body()  # what was not read yet would be mistaken for a sign of life
    while (await request.receive())["type"] != "http.disconnect":
        pass
