"""A projector that knows no pixels: how many embeddings a picture has is a matter of its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forerun.core.prompt import PromptSegment
from forerun.errors import InvalidRequestError
from forerun.media.picture import Media, MediaKind

PATCH: Final = 28
"""Pixels of a side that are one embedding: what Qwen2-VL's projector makes of them."""


class FakeMediaReader:
    """Implements engine.parts.MediaReader: an embedding a patch, as many positions as the longer side has patches.

    `around`: tokens before and after each picture. `most`: embeddings of one at most.
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
        wide, high = -(-item.width // PATCH), -(-item.height // PATCH)
        if wide * high > self._most:
            raise InvalidRequestError(
                "", f"has {wide * high} embeddings, at most {self._most} are read: make it smaller"
            )
        span = PromptSegment.media(f"fake:{item.digest}", wide * high, max(wide, high))
        before, after = self._around
        return [PromptSegment.text(before), span, PromptSegment.text(after)]
