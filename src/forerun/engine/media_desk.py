"""An engine process's side of media: measures items off the engine thread, and gets those that must be encoded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from forerun.core.prompt import PromptSegment
from forerun.engine.media_mail import Measure, MediaMail
from forerun.engine.parts import MediaReader
from forerun.errors import InvalidRequestError
from forerun.media.item import Media


class MediaDesk:
    """Used by the thread that reads commands. `want` tells the front end which digest is wanted."""

    def __init__(self, reader: MediaReader | None, mail: MediaMail, want: Callable[[str], None]) -> None:
        self._reader = reader
        self._mail = mail
        self._threads = ThreadPoolExecutor(1, "forerun-measure")
        mail.connect(want)

    def measure(self, question: Measure) -> Future[tuple[PromptSegment, ...]]:
        """How the model reads an item, once that is known."""
        return self._threads.submit(self._measured, question.item)

    def _measured(self, item: Media) -> tuple[PromptSegment, ...]:
        if self._reader is None:
            raise InvalidRequestError("", "this engine has no projector")
        return tuple(self._reader.segments(item))

    def deliver(self, digest: str, item: Media | None) -> None:
        """An item that was wanted; None where nobody has it."""
        self._mail.deliver(digest, item)

    def close(self) -> None:
        """Nothing is measured or delivered any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._mail.close()
