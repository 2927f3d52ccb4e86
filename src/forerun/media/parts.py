"""Media among the parts of messages.

    {"type": "image", "image": Picture}   in a user's words, or in what a tool gave
    {"type": "audio", "audio": Sound}

What stands there is decoded for the engine; for a server that has not read it yet, where it is to be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from forerun.media.kind import MediaKind

MEDIA_TYPES: Final = tuple(kind.value for kind in MediaKind)


def media_part(kind: MediaKind, item: object) -> dict[str, Any]:
    """An item as a part of a message."""
    return {"type": kind.value, kind.value: item}


def is_media(part: object) -> bool:
    """Whether a part of a message is an item of media."""
    return isinstance(part, Mapping) and part.get("type") in MEDIA_TYPES and part["type"] in part


def media_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The items of a conversation, in order: what `PromptText.media` numbers."""
    found = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, Sequence) and not isinstance(content, str | bytes) else ()
        found += [part[part["type"]] for part in parts if is_media(part)]
    return found
