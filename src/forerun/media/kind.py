"""What sorts of media there are, and what is said to who sends the wrong one."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum
from typing import Final


class MediaKind(StrEnum):
    """What a projector may be able to read."""

    IMAGE = "image"
    AUDIO = "audio"


_ONE: Final = {MediaKind.IMAGE: "an image", MediaKind.AUDIO: "a recording"}
_MANY: Final = {MediaKind.IMAGE: "images", MediaKind.AUDIO: "recordings"}


def why_unread(kind: MediaKind, kinds: Set[MediaKind]) -> str:
    """Why an item is refused by a model that reads `kinds`, said of the item."""
    if kinds:
        known = " and ".join(name for one, name in _MANY.items() if one in kinds)
        return f"is {_ONE[kind]}, and this model's projector reads {known} alone"
    return f"is {_ONE[kind]}, and this model reads text alone: load one with its projector (--mmproj)"
