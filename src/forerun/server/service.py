"""Answers jobs with an engine: checks, renders and tokenises them, and queues their requests."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forerun.chat.pieces import PlainParser
from forerun.core.adapters import require_known
from forerun.core.prompt import PromptLayout
from forerun.core.request import Request, SamplingParams
from forerun.engine.async_engine import AsyncioEngine, AsyncOutputIterator
from forerun.engine.intake import Batch
from forerun.errors import ContextExceededError, InvalidRequestError
from forerun.server.answering import Choice, EngineAnswering
from forerun.server.jobs import ChatJob, TextJob
from forerun.server.records import current_record
from forerun.server.seats import Seats

_LONG_TEXT: Final = 4_000
"""Characters from which on a prompt is tokenised on another thread: about a millisecond."""
_SEEDS: Final = 2**64


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A checked job, as the engine takes it."""

    layouts: Sequence[PromptLayout]
    choices: Sequence[Choice]

    @property
    def prompt_tokens(self) -> int:
        return sum(layout.logical_tokens for layout in self.layouts)


class EngineService:
    """Implements jobs.ChatService. Used on one event loop."""

    def __init__(
        self, engine: AsyncioEngine, seats: Seats, *, timeout: float | None = None, adapters: Iterable[str] = ()
    ) -> None:
        """`timeout`: seconds that any answer may take. `adapters`: names of those the engine has."""
        self._engine = engine
        self.seats = seats
        self._timeout = timeout
        self._adapters = frozenset(adapters)
        self._open: dict[str, EngineAnswering] = {}

    async def start(self, job: ChatJob | TextJob) -> EngineAnswering:
        count = job.n * (len(job.prompts) if isinstance(job, TextJob) else 1)
        if not count:
            raise InvalidRequestError("prompt", "is an empty list; give at least one prompt")
        self.seats.take(count)  # before anything that costs time: who is refused learns it at once
        try:
            prepared = await self._prepare(job)
            return self._submitted(job, prepared, count)
        except BaseException:
            self.seats.release(count)
            raise

    async def count_tokens(self, job: ChatJob) -> int:
        return (await self._chat_layout(job)).logical_tokens

    async def prompt_text(self, job: ChatJob) -> str:
        return (await asyncio.to_thread(self._engine.chat_text, job.messages)).text

    async def layouts(self, job: ChatJob | TextJob) -> Sequence[PromptLayout]:
        if isinstance(job, ChatJob):
            return [await self._chat_layout(job)]
        return [await self._text_layout(prompt) for prompt in job.prompts]

    # --- before the engine ----------------------------------------------------------

    async def _prepare(self, job: ChatJob | TextJob) -> _Prepared:
        check_params(job.params, self._engine.tokenizer.size, self._adapters)
        if isinstance(job, ChatJob):
            layout = await self._chat_layout(job)
            self._check_length("messages", layout)
            return _Prepared([layout], [Choice(PlainParser()) for _ in range(job.n)])
        layouts = [await self._text_layout(prompt) for prompt in job.prompts]
        for layout in layouts:
            self._check_length("prompt", layout)
            check_token_ids("prompt", layout.text_tokens.tolist(), self._engine.tokenizer.size)
        return _Prepared(layouts, [Choice(None) for _ in range(job.n * len(layouts))])

    async def _chat_layout(self, job: ChatJob) -> PromptLayout:
        return await asyncio.to_thread(self._engine.chat_prompt, job.messages)

    async def _text_layout(self, prompt: str | Sequence[int]) -> PromptLayout:
        if len(prompt) > _LONG_TEXT:
            return await asyncio.to_thread(self._engine.prompt, prompt, raw=True)  # type: ignore[arg-type]
        return self._engine.prompt(prompt, raw=True)  # type: ignore[arg-type]

    def _check_length(self, field: str, layout: PromptLayout) -> None:
        count, n_ctx = layout.logical_tokens, self._engine.n_ctx
        if count > n_ctx:
            raise ContextExceededError(
                field, f"the prompt has {count} tokens, but the context holds {n_ctx}: shorten it"
            )

    # --- the engine ----------------------------------------------------------

    def _submitted(self, job: ChatJob | TextJob, prepared: _Prepared, count: int) -> EngineAnswering:
        job_id = secrets.token_hex(12)  # not to be guessed: it gives away, through explain, what others asked
        requests = self._requests(job, job_id, prepared.layouts)
        batch = Batch(count, requests, {request.id: index for index, request in enumerate(requests)}, ())
        current_record().begin(self._engine.model_name, count, prepared.prompt_tokens)
        timeouts = [limit for limit in (job.timeout, self._timeout) if limit is not None]
        answering = EngineAnswering(
            job_id,
            AsyncOutputIterator(self._engine, lambda: batch, incremental=True),
            prepared.choices,
            prompt_tokens=prepared.prompt_tokens,
            timeout=min(timeouts, default=None),
            abort=lambda: self._engine.abort(batch.indexes),
            on_end=lambda: self._ended(job_id, count),
        )
        self._open[job_id] = answering
        return answering

    def _ended(self, job_id: str, count: int) -> None:
        del self._open[job_id]
        self.seats.release(count)

    def cut_off(self, reason: str) -> None:
        for answering in list(self._open.values()):
            answering.cut_off(reason)

    def _requests(self, job: ChatJob | TextJob, job_id: str, layouts: Sequence[PromptLayout]) -> tuple[Request, ...]:
        arrival = time.monotonic()
        return tuple(
            Request(
                id=f"{job_id}-{number}",
                prompt=layout,
                params=_of_choice(job.params, number % job.n),
                arrival=arrival,
                tenant=job.tenant,
                drawn_seed=secrets.randbits(64),
            )
            for number, layout in enumerate(layout for layout in layouts for _ in range(job.n))
        )

    def __repr__(self) -> str:
        return f"EngineService({self._engine!r}, {self.seats!r})"


def check_params(params: SamplingParams, n_vocab: int, adapters: Iterable[str]) -> None:
    """What the engine would refuse when the response has begun. Raises InvalidRequestError, naming the field."""
    check_token_ids("logit_bias", params.logit_bias, n_vocab)
    check_token_ids("stop_token_ids", params.stop_token_ids, n_vocab)
    require_known(params.adapter_set, adapters)


def check_token_ids(field: str, tokens: Iterable[int], n_vocab: int) -> None:
    worst = max(tokens, default=0)
    if worst >= n_vocab:
        raise InvalidRequestError(field, f"token id {worst} is outside the vocabulary of {n_vocab} tokens")


def _of_choice(params: SamplingParams, number: int) -> SamplingParams:
    """The first choice has the seed that was asked for, the others those that follow it."""
    if not number or params.seed is None:
        return params
    return replace(params, seed=(params.seed + number) % _SEEDS)
