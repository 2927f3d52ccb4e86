"""Signatures of thinking blocks: they prove nothing, but bring back thinking that an answer left out."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from forerun.server.wire.messages import ThinkingBlock

UNSIGNED: Final = "unsigned"
"""The signature of thinking that is given in the clear."""
_HELD: Final = "held:"
"""Begins a signature that holds the thinking itself."""


def holding(thinking: str) -> str:
    """The signature of thinking that is left out of the answer."""
    return _HELD + base64.b64encode(thinking.encode()).decode()


def thinking_of(block: ThinkingBlock) -> str:
    """The thinking of an earlier answer, as it is or as its signature holds it."""
    signature = block.signature or ""
    if block.thinking or not signature.startswith(_HELD):
        return block.thinking
    try:
        return base64.b64decode(signature.removeprefix(_HELD), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
