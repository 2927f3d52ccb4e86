"""From a job to what the engine takes: rendered, tokenised, its grammar checked. What can be wrong is found here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from forerun.core.engine_limits import EngineLimits
from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.prompt import PromptLayout
from forerun.core.prompt_text import PromptText
from forerun.core.request import SamplingParams
from forerun.engine.async_engine import AsyncioEngine
from forerun.errors import ContextExceededError, InvalidRequestError
from forerun.media.item import Media
from forerun.media.loading import MediaLoader
from forerun.media.parts import media_of
from forerun.media.sources import MediaSource
from forerun.server.answering import Choice
from forerun.server.chat_front import ChatFront
from forerun.server.jobs import ChatJob, Message, TextJob
from forerun.server.renaming import named_as

_LONG_TEXT: Final = 4_000
"""Characters from which on a prompt is tokenised on another thread: about a millisecond."""
MAX_REQUESTS: Final = 256
"""Prompts times choices of one job."""

_ANYTHING: Final[Sequence[Message]] = ({"role": "user", "content": " "},)


class GrammarCheck(Protocol):
    """Finds out whether a grammar compiles, without holding anybody up."""

    async def check_soon(self, grammar: Grammar, field: str = "grammar") -> None:
        """Raises InvalidRequestError naming `field`, OverloadedError."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked job, as the engine takes it."""

    layouts: Sequence[PromptLayout]
    choices: Sequence[Choice]
    params: SamplingParams
    pins: Sequence[tuple[PromptLayout, float]] = field(default=())
    """What to keep, and for how many seconds."""

    @property
    def prompt_tokens(self) -> int:
        return sum(layout.logical_tokens for layout in self.layouts)


class Preparation:
    """Prepares jobs for one engine. Used on the event loop; what takes long happens on threads."""

    def __init__(
        self,
        engine: AsyncioEngine,
        chat: ChatFront | None = None,
        grammars: GrammarCheck | None = None,
        limits: EngineLimits | None = None,
        media: MediaLoader | None = None,
    ) -> None:
        """`chat` None: the model has no chat template. `grammars` None: none can be enforced. `limits` None: all that
        the vocabulary has can be asked for. `media` None: none is read."""
        self._engine = engine
        self._chat = chat
        self._grammars = grammars
        self._limits = limits or EngineLimits(vocabulary_size=engine.tokenizer.size)
        self._media = media

    async def prepare(self, job: ChatJob | TextJob) -> Prepared:
        """Raises InvalidRequestError, naming the field."""
        self._limits.check(job.params)
        return await (self._prepare_chat(job) if isinstance(job, ChatJob) else self._prepare_texts(job))

    async def text(self, job: ChatJob) -> PromptText:
        """The conversation through the chat template."""
        return await asyncio.to_thread(self._front.text, job)

    async def layouts(self, job: ChatJob | TextJob) -> Sequence[PromptLayout]:
        """The job's prompts."""
        if isinstance(job, ChatJob):
            sources = self._sources(job)
            text = await self.text(job)
            return [await self._layout_of_text(text, await self._loaded(sources), sources)]
        layouts = [await self._layout(prompt) for prompt in job.prompts]
        for layout in layouts:
            self._limits.check_token_ids("prompt", [int(layout.text_tokens.max(initial=0))])
        return layouts

    @property
    def _front(self) -> ChatFront:
        if self._chat is None:
            raise InvalidRequestError("messages", "the model has no chat template; use /v1/completions instead")
        return self._chat

    async def _prepare_chat(self, job: ChatJob) -> Prepared:
        front = self._front
        sources = self._sources(job)
        text = await self.text(job)
        grammar = front.grammar(job, text)
        await self._check_grammar(grammar, _said_by(job))
        await asyncio.to_thread(self._check_size, "messages", text.text)
        media = await self._loaded(sources)
        layout = await self._layout_of_text(text, media, sources)
        self._check_length("messages", layout)
        params = replace(job.params, grammar=grammar, shown_tokens=front.format.shown_tokens)
        is_reasoning = front.opens_reasoning(text)
        choices = [Choice(front.parser(job, text), starts_in_reasoning=is_reasoning) for _ in range(job.n)]
        return Prepared([layout], choices, params, await self._pins(job, layout, media))

    async def _prepare_texts(self, job: TextJob) -> Prepared:
        await self._check_grammar(job.grammar, "grammar")
        for prompt in job.prompts:
            if len(prompt) > self._engine.n_ctx:
                await asyncio.to_thread(self._check_size, "prompt", prompt)
        layouts = await self.layouts(job)
        for layout in layouts:
            self._check_length("prompt", layout)
        return Prepared(
            layouts, [Choice(None) for _ in range(job.n * len(layouts))], replace(job.params, grammar=job.grammar)
        )

    def _sources(self, job: ChatJob) -> list[MediaSource]:
        """What a conversation shows. Raises InvalidRequestError where this model or server does not look at it."""
        sources = media_of(job.messages)
        if sources and self._media is None:
            raise InvalidRequestError(sources[0].field, "cannot be read by this server, which was made without media")
        if sources and self._media is not None:
            self._media.check(sources, self._engine.media_kinds)
        return sources

    async def _loaded(self, sources: Sequence[MediaSource]) -> Sequence[Media]:
        return await self._media.load(sources) if sources and self._media is not None else ()

    async def _pins(
        self, job: ChatJob, whole: PromptLayout, media: Sequence[Media]
    ) -> list[tuple[PromptLayout, float]]:
        pins = []
        for pin in job.pins:
            messages = job.messages[: pin.messages] or _ANYTHING  # tools alone: what comes before any message
            text = await self.text(replace(job, messages=messages, pins=()))
            layout = await self._layout_of_text(text, media, ())
            # What the template writes behind the last message is not part of the prompt that goes on.
            pins.append((whole.prefix(whole.common_prefix(layout)), pin.seconds))
        return pins

    async def _layout_of_text(
        self, text: PromptText, media: Sequence[Media], sources: Sequence[MediaSource]
    ) -> PromptLayout:
        """`sources`: what to name where an item is refused."""
        with named_as({f"media[{index}]": source.field for index, source in enumerate(sources)}):
            return await asyncio.to_thread(self._engine.prompt, text, media=media)

    async def _layout(self, prompt: str | Sequence[int]) -> PromptLayout:
        if len(prompt) > _LONG_TEXT:
            return await asyncio.to_thread(self._engine.prompt, prompt, raw=True)  # type: ignore[arg-type]
        return self._engine.prompt(prompt, raw=True)  # type: ignore[arg-type]

    async def _check_grammar(self, grammar: Grammar | None, field: str) -> None:
        if grammar is None:
            return
        if self._grammars is None:
            raise InvalidRequestError(field, "cannot be enforced by this engine; leave it out")
        if self._limits.accepts_at_random:
            raise InvalidRequestError(field, "cannot be enforced where drafts are accepted at random; leave it out")
        await self._grammars.check_soon(grammar, field)

    def _check_size(self, field: str, prompt: str | Sequence[int]) -> None:
        """What is much too long is refused before it is tokenised: megabytes take many seconds."""
        n_ctx = self._engine.n_ctx
        if len(prompt) <= n_ctx:
            return
        is_text = isinstance(prompt, str)
        count = self._engine.tokenizer.fewest_tokens(prompt) if isinstance(prompt, str) else len(prompt)
        if count > n_ctx:
            tokens = f"at least {count} tokens ({len(prompt)} characters)" if is_text else f"{count} tokens"
            raise ContextExceededError(field, f"the prompt has {tokens}, but the context holds {n_ctx}: shorten it")

    def _check_length(self, field: str, layout: PromptLayout) -> None:
        count, n_ctx = layout.logical_tokens, self._engine.n_ctx
        if not count:
            raise InvalidRequestError(field, "the prompt is empty; it needs at least one token")
        if count > n_ctx:
            raise ContextExceededError(
                field, f"the prompt has {count} tokens, but the context holds {n_ctx}: shorten it"
            )


def _said_by(job: ChatJob) -> str:
    """The field of a request that a chat's grammar comes from."""
    if job.grammar is None:
        return "tools"
    return "response_format" if job.grammar.kind is GrammarKind.JSON_SCHEMA else "grammar"
