"""Which requests an engine process died of: what is sent again after two deaths that it explains is refused.

    died ─► all that were in flight are suspects ─► sent again, one at a time, beside new ones
               suspect got further than when it died, or finished: cleared
               process died while a suspect was in flight: that one explains it and is refused, nobody else is blamed

So a request that kills the process is refused after its second death, however many others were in flight each time; and
an innocent one only where the process dies of something else twice, both times with it, the second time with its turn.
What is known is forgotten with time, and where there is too much.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from forerun.core.request import Request

Content: TypeAlias = str
"""What a request asks, as a digest: its prompt, and what else decides which native code runs."""

_MOST_CONTENTS: Final = 4096
_FORGET_AFTER: Final = 3600.0
"""Seconds."""


def content_of(request: Request) -> Content:
    """Equal for a request that is sent again. Sampling, seed and lengths are left out: they decide nothing that could
    break."""
    digest = hashlib.sha256()
    for segment in request.prompt.segments:
        digest.update(repr(segment.media_span).encode() if segment.is_media else segment.tokens.tobytes())
    params = request.params
    digest.update(repr((params.adapter_set, params.draft_limit, params.logprobs, params.grammar)).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Record:
    deaths: int
    tokens: int
    """Output tokens it had at the most when the process died."""
    since: float


class CrashRecords:
    """What is known of requests that were in flight when the process died. Used by one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[Content, _Record] = OrderedDict()

    def died(self, in_flight: Mapping[Content, int]) -> None:
        """The process died with these in flight, each with so many output tokens."""
        suspects = {content: tokens for content, tokens in in_flight.items() if self.is_suspect(content)}
        for content, tokens in (suspects or in_flight).items():
            known = self._records.pop(content, _Record(0, 0, 0.0))
            self._records[content] = _Record(known.deaths + 1, max(known.tokens, tokens), self._clock())
        while len(self._records) > _MOST_CONTENTS:
            self._records.popitem(last=False)

    def is_suspect(self, content: Content) -> bool:
        """Whether it may be what the process died of: no two such requests are to be in flight together."""
        known = self._known(content)
        return known is not None and known.deaths > 0

    def is_refused(self, content: Content) -> bool:
        """Whether the process died of it."""
        known = self._known(content)
        return known is not None and known.deaths > 1

    def got_to(self, content: Content, tokens: int) -> bool:
        """A suspect has so many output tokens now. Whether that clears it: it got past where the process died."""
        known = self._records.get(content)
        if known is None or tokens <= known.tokens:
            return known is None
        self._records[content] = replace(known, deaths=0)
        return True

    def finished(self, content: Content) -> None:
        """A suspect got to its end."""
        self._records.pop(content, None)

    def _known(self, content: Content) -> _Record | None:
        known = self._records.get(content)
        if known is not None and self._clock() - known.since > _FORGET_AFTER:
            del self._records[content]
            return None
        return known

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        refused = sum(known.deaths > 1 for known in self._records.values())
        return f"CrashRecords({len(self._records)} contents, {refused} refused)"
