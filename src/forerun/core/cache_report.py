"""What callers are told about cached prefixes: before a request (how much would hit), and after it (why not more)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from forerun.core.config import SchedulerConfig
from forerun.core.pool import PrefixMatch, Sequence, SequencePool
from forerun.core.prompt import PromptLayout
from forerun.core.running import RequestState

CONTEXT = 12
"""Tokens shown on either side of a difference."""
_REPORTS = 1024
"""Requests of which it is remembered why no more was reused."""


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


class CacheReports:
    """Looks prompts up for callers, and remembers of each request why no more of its prompt was reused."""

    def __init__(self, config: SchedulerConfig, pool: SequencePool) -> None:
        self._config = config
        self._pool = pool
        self._reports: OrderedDict[str, CacheReport] = OrderedDict()

    def started(self, state: RequestState, layout: PromptLayout, sequence: Sequence) -> int:
        """A request starts on a sequence; returns how much of its prompt others had as well."""
        known, other_after = self._pool.known(layout, state.scope, CONTEXT)
        if state.cached is not None:  # it was told when the request started first
            return known
        cached = sequence.reused.logical_tokens
        around = state.history.slice(max(known - CONTEXT, 0), min(known + CONTEXT, layout.logical_tokens))
        lost_for = self._pool.lost_for(layout, state.scope, cached) if cached < known else None
        self._reports[state.request.id] = CacheReport(
            state.request.id,
            layout.logical_tokens,
            cached,
            known,
            self._why(layout, cached, known, lost_for),
            tuple(around.tolist()),
            other_after,
            lost_for or "",
        )
        if len(self._reports) > _REPORTS:
            self._reports.popitem(last=False)
        return known

    def _why(self, layout: PromptLayout, cached: int, known: int, lost_for: str | None) -> WhyNotMore:
        if cached >= layout.logical_tokens - 1:
            return WhyNotMore.NOTHING
        if not known:
            return WhyNotMore.UNKNOWN
        if cached == known:
            return WhyNotMore.DIFFERS
        if lost_for is not None:
            return WhyNotMore.EVICTED
        shared = layout.boundary_at_or_before(known)
        if not cached and shared is not None and not self._pool.is_worth_reusing(shared, layout):
            return WhyNotMore.SMALL
        return WhyNotMore.NOT_AT_HAND if self._config.memory.is_dense else WhyNotMore.NO_CHECKPOINT

    def of(self, request_id: str) -> CacheReport | None:
        """Why no more of a request's prompt was reused; None where it was not admitted, or too long ago."""
        return self._reports.get(request_id)

    def look_up(self, layout: PromptLayout, scope: str) -> CacheLookup:
        """How much of a prompt would be reused now; changes nothing."""
        match = self._pool.find(layout, scope) if self._config.reuse_prefixes else None
        if match is None or not self._pool.is_worth_reusing(match.boundary, layout):
            match = PrefixMatch()
        tiers, held, host, disk = self._pool.tiers, match.resident.logical_tokens, 0, 0
        if tiers is not None and match.stored.parts:
            if self._config.memory.has_state:
                held = 0
            host, disk = tiers.split(match.stored, held)
        return CacheLookup(layout.logical_tokens, held, host, disk, self._expected_ms(layout, held, host, disk))

    def _expected_ms(self, layout: PromptLayout, held: int, host: int, disk: int) -> float | None:
        rates = self._pool.tiers.rates if self._pool.tiers else None
        if rates is None or rates.prefill_ms is None:
            return None
        computed = (layout.logical_tokens - held) * rates.prefill_ms
        return computed - rates.saving(host, disk)
