"""Between wire formats and the engine: what is to be answered, and the answer as events.

    wire request ──translation──► ChatJob ──ChatService.start──► AsyncIterator[ChoiceEvent] ──translation──► wire events

Each API (chat completions, responses, Anthropic messages) is two pure translations around the same service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from forerun.chat.formats import Tool
from forerun.chat.pieces import Piece
from forerun.core.grammar import Grammar
from forerun.core.prompt import PromptLayout
from forerun.core.request import FinishReason, SamplingParams, TokenLogprobs, Usage

Message: TypeAlias = Mapping[str, Any]
"""A message as chat templates expect it: `role`, `content` (text, or parts with images whose value is a MediaSource),
`tool_calls`, `tool_call_id`, ..."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may or must be called."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
    """Only these; None: all that are given."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep what comes before in memory: the first `messages` messages (0: the tools alone) for `seconds`."""

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatJob:
    """A conversation to be answered."""

    messages: Sequence[Message]
    params: SamplingParams
    """Everything about tokens. Its seed is of the first choice; further choices get their own."""
    n: int = 1
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    grammar: Grammar | None = None
    """What the answer must look like (after reasoning); None: anything."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further names for the chat template (enable_thinking, reasoning_effort, ...)."""
    tenant: str = ""
    """Salt of the prefix cache, with which key it came."""
    cache_prompt: bool = True
    priority: int = 0
    deadline: float | None = None
    """Seconds within which the answer should begin."""
    timeout: float | None = None
    """Seconds until the answer is ended."""
    pins: Sequence[Pin] = ()
    wants_progress: bool = False
    """Report how far the prompt has been read."""


@dataclass(frozen=True, slots=True)
class TextJob:
    """Prompts to be continued as they stand: text or token ids."""

    prompts: Sequence[str | Sequence[int]]
    params: SamplingParams
    n: int = 1
    echo: bool = False
    grammar: Grammar | None = None
    tenant: str = ""
    cache_prompt: bool = True
    priority: int = 0
    deadline: float | None = None
    timeout: float | None = None
    wants_progress: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a prompt has been read, reused tokens included."""

    done: int
    total: int
    seconds_left: float | None
    """None until it can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceEvent:
    """What one step added to one choice. The last event of a choice carries `finish_reason` and `usage`."""

    index: int
    pieces: Sequence[Piece] = ()
    text: str = ""
    """The raw text of this event, before parsing; what completions send."""
    token_ids: tuple[int, ...] = ()
    logprobs: Sequence[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    """With finish_reason STOP: which of `params.stop` ended the answer."""
    has_called: bool = False
    """With finish_reason STOP: the answer ended with whole tool calls."""
    usage: Usage | None = None
    reasoning_tokens: int = 0
    """Output tokens of the choice so far that were reasoning."""
    progress: Progress | None = None


class Answering(Protocol):
    """One job being answered. Errors known before the first event were raised by `start`; later ones are raised by the
    iterator. Closing it (or cancelling the task that reads it) ends all its requests within a step."""

    @property
    def id(self) -> str: ...

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts of the job together, each counted once, whatever `n`."""
        ...

    def __aiter__(self) -> AsyncIterator[ChoiceEvent]: ...

    async def aclose(self) -> None: ...


class ChatService(Protocol):
    """Answers jobs."""

    async def start(self, job: ChatJob | TextJob) -> Answering:
        """Check, render, tokenise, compile and queue a job. Raises InvalidRequestError (a 400), OverloadedError
        (429 or 503, with seconds to wait), EngineError."""
        ...

    async def count_tokens(self, job: ChatJob) -> int:
        """How many tokens the job's prompt has."""
        ...

    async def prompt_text(self, job: ChatJob) -> str:
        """The conversation through the chat template."""
        ...

    async def layouts(self, job: ChatJob | TextJob) -> Sequence[PromptLayout]:
        """The job's prompts, as the engine reads them."""
        ...

    def cut_off(self, reason: str) -> None:
        """End all answers that are open with an EngineClosedError."""
        ...
