"""What turns media into embeddings, faked: it takes a few steps, may fail, and knows what it was told to forget."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forerun.core.encoding import EncodeMedia, ForgetMedia, MediaEvent, MediaOperation
from forerun.core.prompt import MediaSpan, PromptSegment


class FakeEncoder:
    """Encodes a span within `delay` steps after the one that asks for it. `fails`: whether it cannot be encoded."""

    def __init__(self, delay: int = 0, fails: Callable[[str], bool] = lambda _: False) -> None:
        self.delay = delay
        self.encoded: list[str] = []
        """Identities, in order, each as often as it was encoded."""
        self._fails = fails
        self._left: dict[MediaSpan, int] = {}
        """Steps until each span that is asked for is ready."""

    def perform(self, operations: Iterable[MediaOperation]) -> None:
        for operation in operations:
            match operation:
                case EncodeMedia(span):
                    self._left[span] = self.delay
                case ForgetMedia(span):
                    self._left.pop(span)

    def pass_step(self) -> tuple[MediaEvent, ...]:
        """What became ready in a step, or failed."""
        events: list[MediaEvent] = []
        for span, left in self._left.items():
            self._left[span] = left - 1
            if left == 0:
                fails = self._fails(span.identity)
                events.append(MediaEvent(span, "on demand" if fails else ""))
                self.encoded += [] if fails else [span.identity]
        return tuple(events)

    def is_ready(self, media: PromptSegment) -> bool:
        """Whether a span may be evaluated."""
        span = media.media_span
        return span is not None and self._left.get(span, 0) < 0

    @property
    def kept(self) -> frozenset[MediaSpan]:
        """Spans that were asked for and not forgotten."""
        return frozenset(self._left)

    def __repr__(self) -> str:
        return f"FakeEncoder({len(self.encoded)} encoded, {len(self._left)} asked for)"
