"""A chat service that says what a test tells it to, event by event, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from forerun.chat.pieces import Content, Piece, Reasoning, ToolArguments, ToolCall
from forerun.core.prompt import PromptLayout
from forerun.core.request import FinishReason, TokenLogprobs, Usage
from forerun.engine.async_engine import AsyncioEngine
from forerun.server.jobs import ChatJob, ChoiceEvent, TextJob
from forerun.server.model_entry import ServedModel, Serving
from forerun.server.seats import Seats
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings
from tests.server.support import loaded_backend

MODEL = "scripted"
PROMPT_TOKENS = 11


def said(*pieces: Piece, tokens: int = 1, logprobs: Sequence[TokenLogprobs] | None = None) -> ChoiceEvent:
    """What one step added."""
    return ChoiceEvent(index=0, pieces=pieces, token_ids=(0,) * tokens, logprobs=logprobs)


def ended(reason: FinishReason = FinishReason.STOP, *, output: int = 5, cached: int = 4, **fields: Any) -> ChoiceEvent:
    """The last event of an answer."""
    usage = Usage(prompt_tokens=PROMPT_TOKENS, cached_tokens=cached, output_tokens=output)
    return ChoiceEvent(index=0, finish_reason=reason, usage=usage, **fields)


GREETING = (said(Content("Good ")), said(Content("day")), ended())
THOUGHT = (said(Reasoning("Hm")), said(Reasoning("m.")), said(Content("Yes")), ended(reasoning_tokens=2))
CALLS = (
    said(Content("Let me see. ")),
    said(ToolCall(0, "weather"), ToolArguments(0, '{"city": ')),
    said(ToolArguments(0, '"Bern"}')),
    said(ToolCall(1, "weather"), ToolArguments(1, '{"city": "Rome"}')),
    ended(has_called=True),
)
CUT_CALL = (said(ToolCall(0, "weather")), said(ToolArguments(0, '{"city": "Be')), ended(FinishReason.LENGTH))


class ScriptedAnswer:
    """Implements jobs.Answering: the events, or the error among them, one after another."""

    id = "job1"
    prompt_tokens = PROMPT_TOKENS

    def __init__(self, script: Sequence[ChoiceEvent | Exception]) -> None:
        self._script = list(script)
        self.is_closed = False

    def __aiter__(self) -> AsyncIterator[ChoiceEvent]:
        return self

    async def __anext__(self) -> ChoiceEvent:
        if not self._script or self.is_closed:
            raise StopAsyncIteration
        event = self._script.pop(0)
        if isinstance(event, Exception):
            raise event
        return event

    async def aclose(self) -> None:
        self.is_closed = True

    async def __aenter__(self) -> Self:
        return self


class ScriptedService:
    """Implements jobs.ChatService."""

    def __init__(self, *script: ChoiceEvent | Exception) -> None:
        self.script: Sequence[ChoiceEvent | Exception] = script
        self.refusal: Exception | None = None
        self.jobs: list[ChatJob | TextJob] = []

    async def start(self, job: ChatJob | TextJob) -> ScriptedAnswer:
        self.jobs.append(job)
        if self.refusal is not None:
            raise self.refusal
        return ScriptedAnswer(self.script)

    async def count_tokens(self, job: ChatJob) -> int:
        self.jobs.append(job)
        return PROMPT_TOKENS

    async def prompt_text(self, job: ChatJob) -> str:
        raise NotImplementedError

    async def layouts(self, job: ChatJob | TextJob) -> Sequence[PromptLayout]:
        raise NotImplementedError

    def cut_off(self, reason: str) -> None:
        raise NotImplementedError(reason)


def scripted_backend(service: ScriptedService, engine: AsyncioEngine, settings: ServerSettings) -> Backend:
    """A backend whose answers are scripted; the engine is there for its tokenizer and its health."""
    model = ServedModel(MODEL, "scripted.gguf", embeds=False)
    return loaded_backend(settings, Serving(engine, service, Seats(8, 8), model))
