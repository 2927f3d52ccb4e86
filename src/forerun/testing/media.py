"""A projector that knows no pixels: how many embeddings an item has is a matter of its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from forerun.core.prompt import PromptSegment
from forerun.errors import InvalidRequestError
from forerun.media.item import Media
from forerun.media.kind import MediaKind
from forerun.media.picture import Picture
from forerun.media.sound import Sound

PATCH: Final = 28
"""Pixels of a side that are one embedding: what Qwen2-VL's projector makes of them."""


SPAN_SECONDS: Final = 30.0
"""Of a recording: it is cut into spans."""
SPAN_EMBEDDINGS: Final = 15
"""Of each, in as many positions, however long it is: what Whisper's encoder does, which is given silence."""


class FakeMediaReader:
    """Implements engine.parts.MediaReader: an embedding a patch, as many positions as the longer side has patches.

    `around`: tokens before and after each item. `most`: embeddings of one at most.
    """

    def __init__(
        self,
        around: tuple[Sequence[int], Sequence[int]] = ((), ()),
        most: int = 16_384,
        kinds: Sequence[MediaKind] = (),
    ) -> None:
        self.kinds = frozenset(kinds or (MediaKind.IMAGE,))
        self._around = around
        self._most = most

    def segments(self, item: Media) -> Sequence[PromptSegment]:
        spans = [self._picture(item)] if isinstance(item, Picture) else self._sound(item)
        count = sum(span.logical_tokens for span in spans)
        if count > self._most:
            raise InvalidRequestError("", f"has {count} embeddings, at most {self._most} are read: make it smaller")
        before, after = self._around
        return [PromptSegment.text(before), *spans, PromptSegment.text(after)]

    @staticmethod
    def _picture(picture: Picture) -> PromptSegment:
        wide, high = -(-picture.width // PATCH), -(-picture.height // PATCH)
        return PromptSegment.media(f"fake:{picture.digest}", wide * high, max(wide, high))

    @staticmethod
    def _sound(sound: Sound) -> list[PromptSegment]:
        count = math.ceil(sound.seconds / SPAN_SECONDS)
        names = [f"fake:{sound.digest}:{index}" for index in range(count)]
        return [PromptSegment.media(name, SPAN_EMBEDDINGS, SPAN_EMBEDDINGS) for name in names]
