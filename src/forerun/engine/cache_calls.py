"""What callers can ask of the prefix cache, and do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from forerun.core.adapters import adapter_set
from forerun.core.cache_report import CacheLookup, CacheReport
from forerun.core.prompt import PromptLayout
from forerun.core.request import SamplingParams, Usage
from forerun.engine.intake import Intake, Prompt
from forerun.engine.questions import ClearCache, Explain, LookUp, Pin, Question
from forerun.engine.tokenizer import Tokenizer
from forerun.engine.worker import Worker
from forerun.errors import InvalidRequestError

_T = TypeVar("_T")
Adapters: TypeAlias = Mapping[str, float] | str
"""As in SamplingParams: names with scales, or a name."""
_NONE: Mapping[str, float] = {}
_LONGEST_PIN = 30 * 86_400.0
"""Seconds."""

WARM = SamplingParams(max_tokens=1, temperature=0.0)
"""A warmed prompt is computed like any other, and its one token thrown away."""


@dataclass(frozen=True, slots=True)
class CacheExplanation:
    """Why no more of a request's prompt was reused, with the text around the first difference."""

    report: CacheReport
    prompt_text: str
    """The prompt around where it differs."""
    other_text: str
    """How what was seen before went on there."""

    def __str__(self) -> str:
        report = self.report
        said = f"{report.cached_tokens} of {report.prompt_tokens} prompt tokens were reused: {report.why.value}"
        if self.other_text:
            said += f" (token {report.known_tokens}: …{self.prompt_text!r}, seen before: …{self.other_text!r})"
        return said + (f" to make room for request {report.evicted_for}" if report.evicted_for else "")


class Questions:
    """Builds what the blocking and the asyncio cache ask of the scheduler."""

    def __init__(self, intake: Intake, clock: Callable[[], float], tokenizer: Tokenizer) -> None:
        self._intake = intake
        self._clock = clock
        self._tokenizer = tokenizer

    def lookup(self, prompt: Prompt, tenant: str, adapters: Adapters, *, raw: bool) -> LookUp:
        wanted = adapter_set(adapters)
        return LookUp(self._layout(prompt, raw=raw), tenant, wanted)

    def pin(self, prompt: Prompt, seconds: float, tenant: str, adapters: Adapters, *, raw: bool) -> Pin:
        wanted = adapter_set(adapters)
        if isinstance(seconds, bool) or not 0 < seconds <= _LONGEST_PIN:
            raise InvalidRequestError("seconds", f"must lie between 0 and {_LONGEST_PIN:g}, got {seconds!r}")
        return Pin(self._layout(prompt, raw=raw), self._clock() + seconds, tenant, wanted)

    def _layout(self, prompt: Prompt, *, raw: bool) -> PromptLayout:
        return self._intake.raw_layout(prompt) if raw else self._intake.layout(prompt)

    def explained(self, report: CacheReport | None) -> CacheExplanation | None:
        if report is None:
            return None
        shown = self._tokenizer.shown
        return CacheExplanation(report, shown(report.prompt_around), shown(report.other_after))


class Cache:
    """The prefix cache of a blocking engine: `engine.cache.lookup(...)`. Any thread."""

    def __init__(self, worker: Worker, questions: Questions, generate: Callable[..., Any]) -> None:
        self._worker = worker
        self._questions = questions
        self._generate = generate

    def lookup(self, prompt: Prompt, *, raw: bool = False, tenant: str = "", adapters: Adapters = _NONE) -> CacheLookup:
        """How much of a prompt would be reused now, from where, and how soon it could start. Changes nothing."""
        return self._ask(self._questions.lookup(prompt, tenant, adapters, raw=raw))

    def warm(self, prompt: Prompt, *, raw: bool = False, tenant: str = "", adapters: Adapters = _NONE) -> Usage:
        """Compute a prompt so that later ones that begin alike find it. Returns what that took."""
        (output,) = self._generate(prompt, replace(WARM, adapters=adapters), raw=raw, tenant=tenant)
        usage: Usage = output.usage
        return usage

    def pin(
        self, prompt: Prompt, seconds: float, *, raw: bool = False, tenant: str = "", adapters: Adapters = _NONE
    ) -> int:
        """Keep what is stored of a prompt in host memory for so long; how many tokens that are.

        Pins take at most half of the host tier. `warm` first what may not be there.
        """
        return self._ask(self._questions.pin(prompt, seconds, tenant, adapters, raw=raw))

    def explain(self, request_id: str) -> CacheExplanation | None:
        """Why no more of a request's prompt was reused; None for one that is unknown or long ago."""
        return self._questions.explained(self._ask(Explain(request_id)))

    def clear(self, *, tenant: str | None = None) -> int:
        """Forget cached prefixes, of all or of one tenant (with whatever adapters), in memory and on disk.

        Returns how many pieces were dropped.
        """
        return self._ask(ClearCache(tenant))

    def _ask(self, question: Question[_T]) -> _T:
        return self._worker.ask(question).result()


class AsyncioCache:
    """As `Cache`, for tasks: `await engine.cache.lookup(...)`."""

    def __init__(self, worker: Worker, questions: Questions, generate: Callable[..., Any]) -> None:
        self._worker = worker
        self._questions = questions
        self._generate = generate

    async def lookup(
        self, prompt: Prompt, *, raw: bool = False, tenant: str = "", adapters: Adapters = _NONE
    ) -> CacheLookup:
        return await self._ask(await asyncio.to_thread(self._questions.lookup, prompt, tenant, adapters, raw=raw))

    async def warm(self, prompt: Prompt, *, raw: bool = False, tenant: str = "", adapters: Adapters = _NONE) -> Usage:
        params = replace(WARM, adapters=adapters)
        outputs = [output async for output in self._generate(prompt, params, raw=raw, tenant=tenant)]
        usage: Usage = outputs[-1].usage
        return usage

    async def pin(
        self, prompt: Prompt, seconds: float, *, raw: bool = False, tenant: str = "", adapters: Adapters = _NONE
    ) -> int:
        asked = await asyncio.to_thread(self._questions.pin, prompt, seconds, tenant, adapters, raw=raw)
        return await self._ask(asked)

    async def explain(self, request_id: str) -> CacheExplanation | None:
        return self._questions.explained(await self._ask(Explain(request_id)))

    async def clear(self, *, tenant: str | None = None) -> int:
        return await self._ask(ClearCache(tenant))

    async def _ask(self, question: Question[_T]) -> _T:
        return await asyncio.wrap_future(self._worker.ask(question))
