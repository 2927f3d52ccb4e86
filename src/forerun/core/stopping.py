"""From token bytes to text that may be shown: whole UTF-8 characters, and nothing that may still become a stop string.

bytes ──decoder──► text ──┬─ shown (returned by push)
                          └─ held back: a suffix that is the beginning of a stop string
"""

from __future__ import annotations

import codecs


class TextStream:
    """The text of one request as it grows. The result does not depend on how the bytes were cut into tokens.

    Bytes that are no UTF-8 are dropped; an incomplete character is held back until it is whole, or for ever. The stop
    string that is completed first ends the text before it; of two completed by one character the longer one.
    """

    __slots__ = ("_decoder", "_held", "_stops", "stopped_by")

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._stops = stops
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that was completed: nothing more will be shown."""

    @property
    def stopped(self) -> bool:
        """A stop string was completed."""
        return self.stopped_by is not None

    def push(self, piece: bytes) -> str:
        """Add a token's bytes; returns the text that can now be shown."""
        if self.stopped:
            return ""
        text = self._decoder.decode(piece)
        if not self._stops or not text:
            return text
        return self._cut_at_stop(self._held + text)

    def finish(self) -> str:
        """The answer ends for another reason: what was held back is shown, an unfinished character is not."""
        text, self._held = self._held, ""
        return text

    def _cut_at_stop(self, text: str) -> str:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.stopped_by = min(found)
            self._held = ""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if stop.startswith(text[-length:])), 0)
