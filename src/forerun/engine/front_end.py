"""What the sync and the async engine share: the worker, the tokenizer, the intake, and how they end."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from forerun.core.prompt import PromptLayout
from forerun.engine.cache_calls import Questions
from forerun.engine.intake import Conversation, Intake
from forerun.engine.loop import EngineLoop
from forerun.engine.parts import EngineParts
from forerun.engine.tokenizer import Tokenizer
from forerun.engine.worker import EngineHealth, EngineWorker


class FrontEnd:
    """Owns an engine thread. Everything here may be called from any thread."""

    def __init__(self, parts: EngineParts) -> None:
        self.model_name = parts.model_name
        self.n_ctx = parts.n_ctx
        self.has_chat_template = parts.chat_template is not None
        self.tokenizer = tokenizer = Tokenizer(parts.vocabulary)

        def dispose(reason: str) -> None:
            tokenizer.retire(reason)
            parts.dispose()

        loop = EngineLoop(parts.scheduler, parts.runner, parts.clock)
        self._worker = EngineWorker(loop, dispose, interrupt=parts.interrupt, checks_integrity=parts.checks_integrity)
        self._intake = Intake(tokenizer, parts.chat_template, parts.clock)
        self._questions = Questions(self._intake, parts.clock, tokenizer)
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

    def prompt(self, text: str, *, raw: bool = False) -> PromptLayout:
        """Text as `generate` would read it. Raises InvalidRequestError."""
        return self._intake.raw_layout(text) if raw else self._intake.layout(text)

    def chat_text(self, messages: Conversation) -> str:
        """A conversation through the model's chat template, ready for the answer. Raises InvalidRequestError."""
        return self._intake.chat_text(messages)

    def chat_prompt(self, messages: Conversation) -> PromptLayout:
        """What `chat` makes of a conversation: a prompt for `generate` or `stream`. Raises InvalidRequestError."""
        return self._intake.chat_layout(messages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name}, n_ctx {self.n_ctx}, {self._worker!r})"
