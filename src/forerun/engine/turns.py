"""Requests that an engine process may have died of take turns, so that the next death is explained by one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from forerun.core.request import FinishReason, Request
from forerun.engine.crashes import CrashRecords, content_of
from forerun.engine.worker import Sink
from forerun.errors import InvalidRequestError


@dataclass(slots=True, eq=False)
class Opened:
    """A request whose last delta has not come."""

    request: Request
    sink: Sink
    waits_until: float = 0.0
    """The engine is ready by then, or the request is refused."""
    tokens: int = 0
    """Output tokens so far."""


class SuspectTurns:
    """Lets one suspect at a time to the process, and nobody that it died of. Requests that are no suspects pass."""

    def __init__(self, records: CrashRecords) -> None:
        self._records = records
        self._held: deque[Opened] = deque()
        self._turn: Opened | None = None

    def refusal(self, request: Request) -> InvalidRequestError | None:
        """Why a request is not let to the process, if it is not."""
        if not self._records or not self._records.is_refused(content_of(request)):
            return None
        return InvalidRequestError(
            "prompt",
            "the engine's process died twice while it answered exactly this, and is not asked again: change the prompt "
            "(or its grammar or adapters), or restart the server once the cause is gone",
        )

    def may_start(self, opened: Opened) -> bool:
        """Whether a request goes to the process now; else it is held until `next` says."""
        if not self._records or not self._records.is_suspect(content_of(opened.request)):
            return True
        if self._turn is not None:
            self._held.append(opened)
            return False
        self._turn = opened
        return True

    def next(self) -> Opened | None:
        """A held request that may try now."""
        return self._held.popleft() if self._held and self._turn is None else None

    def got_on(self, opened: Opened, finish_reason: FinishReason | None) -> None:
        """The process gave a request something, or its end: a suspect may be cleared by that, or its turn is over."""
        if self._turn is not opened:
            return
        content = content_of(opened.request)
        if finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._records.finished(content)
        if finish_reason is not None or self._records.got_to(content, opened.tokens):
            self._turn = None

    def left(self, opened: Opened) -> None:
        """A request did not get to the process."""
        if self._turn is opened:
            self._turn = None

    def give_up(self, request_id: str) -> Opened | None:
        """Take a held request out; None where it is not among them."""
        for opened in self._held:
            if opened.request.id == request_id:
                self._held.remove(opened)
                return opened
        return None

    def died(self, in_flight: Iterable[Opened]) -> None:
        """The process died with these requests."""
        tokens: dict[str, int] = {}
        for opened in in_flight:
            content = content_of(opened.request)
            tokens[content] = max(tokens.get(content, 0), opened.tokens)
        self._records.died(tokens)
        self._turn = None

    def take_held(self) -> list[Opened]:
        """All that are held, which are no more."""
        held = list(self._held)
        self._held.clear()
        return held

    def __repr__(self) -> str:
        return f"SuspectTurns({len(self._held)} held, {self._records!r})"
