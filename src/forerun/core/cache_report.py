"""What callers are told about cached prefixes: before a request (how much would hit), and after it (why not more)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """How much of a prompt would be reused now, and from where. Logical tokens."""

    prompt_tokens: int
    resident_tokens: int = 0
    """In the KV memory."""
    host_tokens: int = 0
    """To be restored from host memory."""
    disk_tokens: int = 0
    """To be read from disk first."""
    expected_ms: float | None = None
    """Time to the first token on an engine with nothing else to do; None where prefill was not measured yet."""

    @property
    def cached_tokens(self) -> int:
        return self.resident_tokens + self.host_tokens + self.disk_tokens


class WhyNotMore(StrEnum):
    """What ended the reused part of a prompt."""

    NOTHING = "all but the last token was reused"
    UNKNOWN = "nothing like it was seen before"
    DIFFERS = "the prompt goes on otherwise than anything seen before"
    EVICTED = "the rest was dropped"
    NO_CHECKPOINT = "this model's memory cannot be cut there, and no checkpoint was closer"
    SMALL = "what is shared is too little to be worth reusing"
    NOT_AT_HAND = "the rest could not be had in time, or computing it was expected to be faster"


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Why no more of a request's prompt was reused."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    known_tokens: int
    """How many first tokens of the prompt were seen before, whether or not they are still kept."""
    why: WhyNotMore
    prompt_around: tuple[int, ...] = ()
    """Tokens of the prompt around where it differs: up to CONTEXT before and after."""
    other_after: tuple[int, ...] = ()
    """How what was seen before went on there."""
    evicted_for: str = ""
    """The request that the rest had to make room for; "" where it was cleared or damaged."""


CONTEXT = 12
"""Tokens shown on either side of a difference."""
