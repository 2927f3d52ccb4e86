"""Answers jobs with an engine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from forerun.core.prompt import PromptLayout
from forerun.core.request import Request, SamplingParams
from forerun.engine.async_engine import AsyncioEngine, AsyncOutputIterator
from forerun.engine.intake import Batch
from forerun.errors import InvalidRequestError
from forerun.server.answering import EngineAnswering
from forerun.server.jobs import ChatJob, TextJob
from forerun.server.pinning import Pinning
from forerun.server.preparing import MAX_REQUESTS, Preparation, Prepared
from forerun.server.records import current_record
from forerun.server.seats import Seats

_SEEDS: Final = 2**64


class EngineService:
    """Implements jobs.ChatService. Used on one event loop."""

    def __init__(
        self, engine: AsyncioEngine, preparation: Preparation, seats: Seats, *, timeout: float | None = None
    ) -> None:
        """`timeout`: seconds that any answer may take."""
        self._engine = engine
        self._preparation = preparation
        self._seats = seats
        self._timeout = timeout
        self._pinning = Pinning(engine)
        self._open: dict[str, EngineAnswering] = {}

    async def start(self, job: ChatJob | TextJob) -> EngineAnswering:
        count = job.n * (len(job.prompts) if isinstance(job, TextJob) else 1)
        if not 1 <= count <= MAX_REQUESTS:
            raise InvalidRequestError("prompt", f"asks for {count} answers; 1 to {MAX_REQUESTS} are given at a time")
        self._seats.take(count)  # before anything that costs time: who is refused learns it at once
        try:
            prepared = await self._preparation.prepare(job)
            return self._submitted(job, prepared, count)
        except BaseException:
            self._seats.release(count)
            raise

    async def count_tokens(self, job: ChatJob) -> int:
        (layout,) = await self._preparation.layouts(job)
        return layout.logical_tokens

    async def prompt_text(self, job: ChatJob) -> str:
        return (await self._preparation.text(job)).text

    async def layouts(self, job: ChatJob | TextJob) -> Sequence[PromptLayout]:
        return await self._preparation.layouts(job)

    def cut_off(self, reason: str) -> None:
        for answering in list(self._open.values()):
            answering.cut_off(reason)

    def _submitted(self, job: ChatJob | TextJob, prepared: Prepared, count: int) -> EngineAnswering:
        job_id = secrets.token_hex(12)  # not to be guessed: it gives away, through explain, what others asked
        requests = _requests(job, job_id, prepared)
        batch = Batch(count, requests, {request.id: index for index, request in enumerate(requests)}, ())
        current_record().begin(self._engine.model_name, count, prepared.prompt_tokens)
        timeouts = [limit for limit in (job.timeout, self._timeout) if limit is not None]

        def ended() -> None:
            del self._open[job_id]
            self._seats.release(count)
            self._pinning.keep(prepared.pins, tenant=job.tenant, adapters=job.params.adapter_set)

        answering = EngineAnswering(
            job_id,
            AsyncOutputIterator(self._engine, lambda: self._engine.constrained(batch), incremental=True),
            prepared.choices,
            prompt_tokens=prepared.prompt_tokens,
            timeout=min(timeouts, default=None),
            abort=lambda: self._engine.abort(batch.indexes),
            on_end=ended,
        )
        self._open[job_id] = answering
        return answering

    def __repr__(self) -> str:
        return f"EngineService({self._engine!r}, {self._seats!r})"


def _requests(job: ChatJob | TextJob, job_id: str, prepared: Prepared) -> tuple[Request, ...]:
    """For each prompt those of its choices, which share it."""
    arrival = time.monotonic()
    return tuple(
        Request(
            id=f"{job_id}-{number}",
            prompt=layout,
            params=_of_choice(prepared.params, number % job.n),
            arrival=arrival,
            tenant=job.tenant,
            drawn_seed=secrets.randbits(64),
            priority=job.priority,
            deadline=None if job.deadline is None else arrival + job.deadline,
            reuses_cache=job.cache_prompt,
            reports_progress=job.wants_progress,
        )
        for number, layout in enumerate(layout for layout in prepared.layouts for _ in range(job.n))
    )


def _of_choice(params: SamplingParams, number: int) -> SamplingParams:
    """The first choice has the seed that was asked for, the others those that follow it."""
    if not number or params.seed is None:
        return params
    return replace(params, seed=(params.seed + number) % _SEEDS)
