"""From what callers pass to requests: prompts sorted out, text tokenised, parameters paired, seeds drawn."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Final, TypeAlias, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.prompt_text import PromptText
from forerun.core.request import Request, SamplingParams
from forerun.engine.output import Output, refusal
from forerun.engine.parts import ChatRenderer, Constrain, MediaReader, Message
from forerun.engine.tokenizer import Tokenizer, check_unicode
from forerun.errors import EngineClosedError, ForerunError, InvalidRequestError
from forerun.media.item import Media
from forerun.media.kind import why_unread
from forerun.media.parts import media_of

Prompt: TypeAlias = str | Sequence[int] | NDArray[np.int32] | PromptLayout
"""Text (a user's message where the model has a chat template), token ids, or a whole layout."""
Prompts: TypeAlias = Prompt | Sequence[Prompt]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
Conversation: TypeAlias = Sequence[Message]
Conversations: TypeAlias = Conversation | Sequence[Conversation]
_T = TypeVar("_T")
READS_TEXT_ALONE: Final = "this model reads text alone; load one with its projector (--mmproj) to show it media"
MAX_PRIORITY: Final = 2**31 - 1
MAX_DEADLINE: Final = 366 * 86_400


class RequestOptions(TypedDict, total=False):
    """What a call says about its requests beside prompts and parameters: fields of core.request.Request, but for
    `deadline`, which is in seconds from now."""

    tenant: str
    priority: int
    deadline: float
    reuses_cache: bool
    reports_progress: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """One call: the requests to submit, and those refused before the engine saw them."""

    size: int
    requests: tuple[Request, ...]
    indexes: dict[str, int]
    refused: tuple[Output, ...]


class Intake:
    """Builds requests. Any thread; holds nothing of a request once it is built."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatRenderer | None,
        clock: Callable[[], float],
        constrain: Constrain | None = None,
        media: MediaReader | None = None,
    ) -> None:
        """`media` None: prompts are text alone."""
        self._tokenizer = tokenizer
        self._template = template
        self._clock = clock
        self._constrain = constrain
        self._media = media
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def prompts(
        self, prompts: Prompts, params: Params, *, raw: bool = False, **options: Unpack[RequestOptions]
    ) -> Batch:
        """The requests of `generate` and `stream`. A prompt that cannot be used is among the refused."""
        return self._batch(as_prompts(prompts), params, self.raw_layout if raw else self.layout, options)

    def conversations(self, conversations: Conversations, params: Params, **options: Unpack[RequestOptions]) -> Batch:
        """The requests of `chat`."""
        return self._batch(as_conversations(conversations), params, self.chat_layout, options)

    def constrained_batch(self, batch: Batch) -> Batch:
        """A batch with its grammars compiled, where this side compiles them. Raises InvalidRequestError."""
        constrain = self._constrain
        if constrain is None:
            return batch
        return replace(batch, requests=tuple(constrained(request, constrain) for request in batch.requests))

    def layout(self, prompt: Prompt) -> PromptLayout:
        """One prompt; text is what a user says, where the model has a chat template. Raises InvalidRequestError."""
        if isinstance(prompt, str) and prompt and self._template is not None:
            check_unicode(prompt)  # before it is rendered, so that an error counts the caller's characters
            return self.chat_layout([{"role": "user", "content": prompt}])
        return self.raw_layout(prompt)

    def raw_layout(self, prompt: Prompt) -> PromptLayout:
        """One prompt, text tokenised as it stands. Raises InvalidRequestError."""
        if isinstance(prompt, PromptLayout):
            if self._media is None and any(segment.is_media for segment in prompt.segments):
                # A runner would fail the step, for everyone.
                raise InvalidRequestError("prompt", f"holds media; {READS_TEXT_ALONE}")
            return prompt
        if isinstance(prompt, str):
            if not prompt:
                raise InvalidRequestError("prompt", "is empty; give at least one token")
            return PromptLayout.of_text(self._tokenizer.tokenize(prompt))
        try:
            return PromptLayout.of_text(prompt)
        except TypeError:
            kind = type(prompt).__name__
            raise InvalidRequestError("prompt", f"is text, token ids or a PromptLayout, got {kind}") from None
        except (ValueError, OverflowError) as error:
            raise InvalidRequestError("prompt", str(error)) from error

    def chat_text(self, messages: Conversation) -> PromptText:
        """A conversation through the model's chat template, ready for the answer. Raises InvalidRequestError."""
        if self._template is None:
            raise InvalidRequestError("messages", "the model has no chat template; pass a prompt instead")
        text = self._template.render(messages, add_generation_prompt=True)
        check_unicode(text.text)
        return text

    def chat_layout(self, messages: Conversation) -> PromptLayout:
        return self.text_layout(self.chat_text(messages), media_of(messages))

    def text_layout(self, text: PromptText, media: Sequence[Media] = ()) -> PromptLayout:
        """One prompt that a template wrote, with the items that stand in it.

        Raises InvalidRequestError, naming an item as `media[index]`.
        """
        if not text.media:
            return PromptLayout.of_text(self._tokenizer.tokenize(text))
        items: dict[str, Media] = {}
        segments = tuple(self._segments(text, media, items))
        return PromptLayout(segments, items)

    def _segments(self, text: PromptText, media: Sequence[Media], items: dict[str, Media]) -> Iterator[PromptSegment]:
        """Also notes in `items` which item each span is of."""
        tokenize = self._tokenizer.tokenize  # what the model wants before a prompt comes before media, too
        for part in itertools.chain([PromptText("")] if text.media[0][0] == 0 else [], text.cut()):
            if isinstance(part, int):
                read = self._read(part, media[part])
                items.update((one.media_span.identity, media[part]) for one in read if one.media_span is not None)
                yield from read
            else:
                yield PromptSegment.text(tokenize(part))
                tokenize = self._tokenizer.tokenize_continuation

    def _read(self, index: int, item: object) -> Sequence[PromptSegment]:
        if self._media is None:
            raise InvalidRequestError(f"media[{index}]", READS_TEXT_ALONE)
        if not isinstance(item, Media):
            raise InvalidRequestError(f"media[{index}]", f"is a Picture or a Sound, got {type(item).__name__}")
        if item.kind not in self._media.kinds:
            raise InvalidRequestError(f"media[{index}]", why_unread(item.kind, self._media.kinds))
        try:
            return self._media.segments(item)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"media[{index}]", error.reason) from error

    def _batch(
        self, items: Sequence[_T], params: Params, layout: Callable[[_T], PromptLayout], options: RequestOptions
    ) -> Batch:
        check_options(options)
        arrival = self._clock()
        seconds = options.get("deadline")
        fields: dict[str, Any] = {name: value for name, value in options.items() if name != "deadline"}
        deadline = None if seconds is None else arrival + seconds
        requests: list[Request] = []
        indexes: dict[str, int] = {}
        refused: list[Output] = []
        for index, (item, own) in enumerate(zip(items, paired(params, len(items)), strict=True)):
            request_id = f"{self._prefix}-{next(self._numbers)}"
            try:
                seed = secrets.randbits(64)  # the core has no randomness of its own
                request = Request(
                    id=request_id,
                    prompt=layout(item),
                    params=own,
                    arrival=arrival,
                    drawn_seed=seed,
                    deadline=deadline,
                    **fields,
                )
                if self._constrain is not None:
                    request = constrained(request, self._constrain)
            except EngineClosedError:
                raise
            except ForerunError as error:
                refused.append(refusal(index, request_id, error))
                continue
            requests.append(request)
            indexes[request_id] = index
        return Batch(len(items), tuple(requests), indexes, tuple(refused))


def check_options(options: RequestOptions) -> None:
    """Raise InvalidRequestError for an option of the wrong type, or out of range."""
    given: dict[str, object] = dict(options)
    tenant, priority = given.get("tenant", ""), given.get("priority", 0)
    if not isinstance(tenant, str):
        raise InvalidRequestError("tenant", f"must be text, got {tenant!r}")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidRequestError(
            "priority", f"must be a whole number between {-MAX_PRIORITY} and {MAX_PRIORITY}, got {priority!r}"
        )
    deadline = given.get("deadline")
    if deadline is not None and (isinstance(deadline, bool) or not isinstance(deadline, int | float)):
        raise InvalidRequestError("deadline", f"must be seconds from now, got {deadline!r}")
    if deadline is not None and not 0 < deadline <= MAX_DEADLINE:  # also refuses NaN
        raise InvalidRequestError("deadline", f"must lie between 0 and {MAX_DEADLINE} seconds, got {deadline}")
    for name in ("reuses_cache", "reports_progress"):
        if not isinstance(given.get(name, False), bool):
            raise InvalidRequestError(name, f"must be true or false, got {given[name]!r}")


def constrained(request: Request, constrain: Constrain) -> Request:
    """The request with its grammar compiled, which may take a while: not for the engine thread.

    Raises InvalidRequestError.
    """
    grammar = request.params.grammar
    return request if grammar is None else replace(request, constraint=constrain(grammar))


def as_prompts(prompts: Prompts) -> Sequence[Prompt]:
    """A row of prompts, whether one came or several."""
    if isinstance(prompts, str | PromptLayout | np.ndarray):
        return [prompts]
    items = _as_sequence("prompts", prompts)
    if items and isinstance(items[0], Integral):
        return [items]
    return items


def as_conversations(conversations: Conversations) -> Sequence[Conversation]:
    """A row of conversations, whether one came or several."""
    items = _as_sequence("messages", conversations)
    if not items:
        raise InvalidRequestError("messages", "are empty; give at least one message")
    if isinstance(items[0], Sequence):
        return items
    return [items]


def _as_sequence(field: str, value: object) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRequestError(field, f"must be a list, got {type(value).__name__}")
    return value


def paired(params: Params, count: int) -> Iterable[SamplingParams]:
    """Parameters for each of `count` prompts. Raises InvalidRequestError where their numbers differ."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return itertools.repeat(params, count)
    each = _as_sequence("params", params)
    if not all(isinstance(one, SamplingParams) for one in each):
        raise InvalidRequestError("params", "must be SamplingParams, or a list of one for each prompt")
    if len(each) != count:
        raise InvalidRequestError("params", f"{len(each)} given for {count} prompts; give one, or one each")
    return each
