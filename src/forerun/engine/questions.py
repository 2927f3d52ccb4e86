"""What can be asked of an engine between two steps: values, so that one in a process of its own can be asked too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from forerun.core.adapters import AdapterSet, scope_of
from forerun.core.cache_report import CacheLookup, CacheReport
from forerun.core.prompt import PromptLayout
from forerun.core.stats import SchedulerStats
from forerun.engine.loop import EngineLoop
from forerun.engine.telemetry import EngineTelemetry

T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """Asked once, answered on the engine thread between two steps. Frozen; what it raises is the asker's."""

    def answer(self, loop: EngineLoop, /) -> T_co: ...


@dataclass(frozen=True, slots=True)
class LookUp:
    """How much of a prompt would be reused now. Changes nothing."""

    prompt: PromptLayout
    tenant: str = ""
    adapters: AdapterSet = ()

    def answer(self, loop: EngineLoop) -> CacheLookup:
        scheduler = loop.scheduler
        return scheduler.look_up(self.prompt, scheduler.scope_of(self.tenant, self.adapters))


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep what is stored of a prompt until then, on the engine's clock; how many tokens that are."""

    prompt: PromptLayout
    until: float
    tenant: str = ""
    adapters: AdapterSet = ()

    def answer(self, loop: EngineLoop) -> int:
        scheduler = loop.scheduler
        return scheduler.pin(self.prompt, scheduler.scope_of(self.tenant, self.adapters), self.until)


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Forget idle prefixes, of all (None) or of one tenant; how many pieces were dropped."""

    tenant: str | None = None

    def answer(self, loop: EngineLoop) -> int:
        return loop.scheduler.clear_cache(None if self.tenant is None else scope_of(self.tenant))


@dataclass(frozen=True, slots=True)
class Explain:
    """Why no more of a request's prompt was reused; None for one that is unknown or long ago."""

    request_id: str

    def answer(self, loop: EngineLoop) -> CacheReport | None:
        return loop.scheduler.explain(self.request_id)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of requests, sequences and cells."""

    def answer(self, loop: EngineLoop) -> SchedulerStats:
        return loop.scheduler.stats


@dataclass(frozen=True, slots=True)
class Counts:
    """What the engine has done since it started."""

    def answer(self, loop: EngineLoop) -> EngineTelemetry:
        return loop.telemetry.snapshot(loop.scheduler.stats)
