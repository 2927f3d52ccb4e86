"""What the sync and the async engine share: the worker, the tokenizer, the intake, and how they end.

Nothing here knows whether the worker is a thread or a process.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from forerun.core.prompt import PromptLayout
from forerun.core.prompt_text import PromptText
from forerun.engine.cache_calls import Questions
from forerun.engine.health import EngineHealth
from forerun.engine.intake import Batch, Conversation, Intake
from forerun.engine.loop import EngineLoop
from forerun.engine.parts import ChatRenderer, Constrain, EngineParts, MediaReader
from forerun.engine.tokenizer import Tokenizer
from forerun.engine.worker import EngineWorker, Worker
from forerun.media.item import Media
from forerun.media.kind import MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndParts:
    """What a front end is made of, wherever its engine runs."""

    worker: Worker
    tokenizer: Tokenizer
    chat_template: ChatRenderer | None = None
    media: MediaReader | None = None
    """None: the model reads text alone."""
    model_name: str = "model"
    n_ctx: int
    """KV cells of the target: no prompt and its answer can be longer."""
    max_num_seqs: int
    """Requests that run at the same time."""
    clock: Callable[[], float] = time.monotonic
    """The engine's."""
    constrain: Constrain | None = None
    """Compiles grammars in the caller's thread. None: the worker's side does, or refuses them."""


def on_a_thread(parts: EngineParts) -> FrontEndParts:
    """Start an engine on a thread of this process."""
    tokenizer = Tokenizer(parts.vocabulary)

    def dispose(reason: str) -> None:
        tokenizer.retire(reason)
        parts.dispose()

    loop = EngineLoop(parts.scheduler, parts.runner, parts.clock)
    return FrontEndParts(
        worker=EngineWorker(loop, dispose, interrupt=parts.interrupt, checks_integrity=parts.checks_integrity),
        tokenizer=tokenizer,
        chat_template=parts.chat_template,
        media=parts.media,
        model_name=parts.model_name,
        n_ctx=parts.n_ctx,
        max_num_seqs=parts.scheduler.config.max_num_seqs,
        clock=parts.clock,
        constrain=parts.constrain,
    )


class FrontEnd:
    """Owns an engine, on a thread or in a process. Everything here may be called from any thread."""

    def __init__(self, parts: EngineParts | FrontEndParts) -> None:
        """`EngineParts` are started on a thread of this process."""
        given = on_a_thread(parts) if isinstance(parts, EngineParts) else parts
        self.model_name = given.model_name
        self.n_ctx = given.n_ctx
        self.max_num_seqs = given.max_num_seqs
        self.chat_template = given.chat_template
        self.has_chat_template = given.chat_template is not None
        self.tokenizer = given.tokenizer
        self._worker = given.worker
        self.media_kinds: frozenset[MediaKind] = frozenset() if given.media is None else given.media.kinds
        """What the model can be shown beside text."""
        self._intake = Intake(given.tokenizer, given.chat_template, given.clock, given.constrain, given.media)
        self._questions = Questions(self._intake, given.clock, given.tokenizer)
        # Closes the engine when it is dropped or Python exits: its thread must not run native code then.
        self._closes_when_dropped = weakref.finalize(self, self._worker.close)

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken."""
        return self._worker.health.is_alive

    @property
    def health(self) -> EngineHealth:
        """Whether requests are taken, and why not."""
        return self._worker.health

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests early, with finish reason ABORT: their iterators yield what there is. Never waits."""
        self._worker.abort(request_ids)

    def constrained(self, batch: Batch) -> Batch:
        """A batch built elsewhere, with its grammars compiled where that is this side's part. Raises
        InvalidRequestError."""
        return self._intake.constrained_batch(batch)

    def prompt(self, text: str | PromptText, *, raw: bool = False, media: Sequence[Media] = ()) -> PromptLayout:
        """Text as `generate` would read it; a PromptText is taken as it stands, with `media` where it says.

        Raises InvalidRequestError, naming an item as `media[index]`.
        """
        if isinstance(text, PromptText):
            return self._intake.text_layout(text, media)
        return self._intake.raw_layout(text) if raw else self._intake.layout(text)

    def chat_text(self, messages: Conversation) -> PromptText:
        """A conversation through the model's chat template, ready for the answer. Raises InvalidRequestError."""
        return self._intake.chat_text(messages)

    def chat_prompt(self, messages: Conversation) -> PromptLayout:
        """What `chat` makes of a conversation: a prompt for `generate` or `stream`. Raises InvalidRequestError."""
        return self._intake.chat_layout(messages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name}, n_ctx {self.n_ctx}, {self._worker!r})"
