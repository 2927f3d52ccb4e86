"""Media spans on their way to embeddings: what is encoded, for whom, and what is ready to be evaluated.

    running request ──its next span──► EncodeMedia ──► encoded beside the steps ──MediaEvent──► ready ──► MediaRows
                                           └── nobody wants it any more ──► ForgetMedia

Each running request has at most one span in here, the next one it has not evaluated, so what is kept ready is bounded.
Requests that want the same span share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from forerun.core.prompt import MediaItem, MediaSpan

if TYPE_CHECKING:  # a request's state knows plans, and plans know this
    from forerun.core.running import RequestState


@dataclass(frozen=True, slots=True)
class EncodeMedia:
    """Begin to turn a media span into embeddings; ends with an event, unless it is forgotten before."""

    span: MediaSpan
    item: MediaItem | None = None
    """What it is a span of; None: the encoder has it already, or asks whoever has."""


@dataclass(frozen=True, slots=True)
class ForgetMedia:
    """Nobody waits for a span's embeddings any more, or will evaluate them soon."""

    span: MediaSpan


MediaOperation: TypeAlias = EncodeMedia | ForgetMedia


@dataclass(frozen=True, slots=True)
class MediaEvent:
    """A span was encoded."""

    span: MediaSpan
    error: str = ""
    """Why it was not."""


@dataclass(slots=True)
class _Wanted:
    """A span that running requests will evaluate next."""

    holders: list[RequestState] = field(default_factory=list)
    is_ready: bool = False
    error: str = ""
    """Why it cannot be encoded."""


class Encodings:
    """Owns which spans are being encoded or ready, and for which running requests. The scheduler's."""

    def __init__(self) -> None:
        self._wanted: dict[MediaSpan, _Wanted] = {}
        self._by_request: dict[RequestState, MediaSpan] = {}
        self._operations: list[MediaOperation] = []

    def ask(self, running: Iterable[RequestState]) -> None:
        """Have the next span of each running request encoded, and forget those of requests that run no more."""
        for state in [state for state in self._by_request if state.sequence is None]:
            self._let_go(state)
        for state in running:
            if state.has_media:
                self._ask_for(state)

    def _ask_for(self, state: RequestState) -> None:
        media = state.coming_media()
        span = media.media_span if media is not None else None
        if self._by_request.get(state) == span:
            return
        self._let_go(state)
        if span is None:
            return
        wanted = self._wanted.get(span)
        if wanted is None:
            wanted = self._wanted[span] = _Wanted()
            self._operations.append(EncodeMedia(span, state.request.prompt.media.get(span.identity)))
        wanted.holders.append(state)
        self._by_request[state] = span

    def _let_go(self, state: RequestState) -> None:
        span = self._by_request.pop(state, None)
        if span is None:
            return
        holders = self._wanted[span].holders
        holders.remove(state)
        if not holders:
            del self._wanted[span]
            self._operations.append(ForgetMedia(span))

    def learn(self, events: Iterable[MediaEvent]) -> None:
        """What was encoded, or could not be."""
        for event in events:
            wanted = self._wanted.get(event.span)
            if wanted is not None:
                wanted.is_ready, wanted.error = not event.error, event.error

    def failed(self) -> list[tuple[RequestState, str]]:
        """Whose next span cannot be encoded, and why; who is behind with reading is told later."""
        return [
            (state, wanted.error)
            for wanted in self._wanted.values()
            if wanted.error
            for state in wanted.holders
            if not state.is_paused
        ]

    def holds_up(self, state: RequestState) -> bool:
        """Whether a request can do nothing before its span is encoded."""
        media = state.next_media()
        if media is None or media.media_span is None:
            return False
        wanted = self._wanted.get(media.media_span)
        return wanted is None or not wanted.is_ready

    @property
    def is_busy(self) -> bool:
        """Whether something is being encoded."""
        return any(not (wanted.is_ready or wanted.error) for wanted in self._wanted.values())

    def take_operations(self) -> tuple[MediaOperation, ...]:
        """What the runner has to do. Empties the queue."""
        operations = tuple(self._operations)
        self._operations.clear()
        return operations

    @property
    def has_work(self) -> bool:
        """Whether the runner still has to forget something."""
        return bool(self._operations) or any(state.sequence is None for state in self._by_request)

    def check_integrity(self) -> None:
        """Raise AssertionError where a span is wanted by nobody, or its holders contradict it."""
        holders = {state: span for span, wanted in self._wanted.items() for state in wanted.holders}
        assert holders == self._by_request
        assert all(wanted.holders for wanted in self._wanted.values())

    def __repr__(self) -> str:
        ready = sum(wanted.is_ready for wanted in self._wanted.values())
        return f"Encodings({len(self._wanted) - ready} being encoded, {ready} ready)"


class EmbeddingStore(Protocol):
    """Keeps what spans were encoded to, within its budgets, by the identity of the span. Used by one thread."""

    def get(self, identity: str) -> bytes | None:
        """What was put under an identity, where it is still there."""
        ...

    def put(self, identity: str, encoded: bytes) -> None:
        """Keep some bytes; others, or these, may have to go."""
        ...
