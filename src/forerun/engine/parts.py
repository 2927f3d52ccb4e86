"""What an engine is made of, as the composition hands it over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from forerun.core.grammar import Grammar, TokenConstraint
from forerun.core.prompt import PromptSegment, Tokens
from forerun.core.prompt_text import PromptText
from forerun.core.scheduler import Scheduler
from forerun.core.step import Runner, Vocabulary
from forerun.engine.media_mail import MediaMail
from forerun.media.item import Media
from forerun.media.kind import MediaKind

Message: TypeAlias = Mapping[str, Any]
"""One message of a conversation, as chat templates expect it: at least `role` and `content`."""


class TextVocabulary(Vocabulary, Protocol):
    """A vocabulary that also turns text into tokens."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        """Token ids of `text`. `add_special`: what the model wants around it; `parse_special`: control tokens too."""
        ...

    def token_text(self, token: int) -> str:
        """How a template writes a token, control tokens included."""
        ...

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """The tokens that `parse_special` alone reads, by their spelling."""
        ...

    @property
    def bos(self) -> int:
        """The token that starts a text, -1 where the model has none."""
        ...


class ChatRenderer(Protocol):
    """A model's chat template."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> PromptText:
        """The conversation as the model was trained to read it; what users wrote of control tokens in it is plain.

        Raises InvalidRequestError where it cannot be rendered.
        """
        ...


class MediaReader(Protocol):
    """A model's projector, as whoever builds prompts sees it. Any thread."""

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """What the model can be shown."""
        ...

    def segments(self, item: Media) -> Sequence[PromptSegment]:
        """The item as the model reads it: spans of embeddings, and the tokens that belong around and between them.

        May take a while. Raises InvalidRequestError, whose reason alone is used, for an item that it cannot take.
        """
        ...


Constrain: TypeAlias = Callable[[Grammar], TokenConstraint]
"""Compiles a grammar for one request; any thread. Raises InvalidRequestError."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """Everything one engine owns. The engine's thread takes scheduler and runner over and frees all with `dispose`."""

    scheduler: Scheduler
    runner: Runner
    vocabulary: TextVocabulary
    chat_template: ChatRenderer | None = None
    media: MediaReader | None = None
    """None: the model reads text alone."""
    media_mail: MediaMail = field(default_factory=MediaMail)
    """Where what has to be encoded is asked for, if it did not come with its request."""
    constrain: Constrain | None = None
    """None: this engine enforces no grammars, and refuses requests that have one. Called by whoever builds requests
    where the engine is (`intake.constrained`)."""
    model_name: str = "model"
    n_ctx: int
    """KV cells of the target: no prompt and its answer can be longer."""
    interrupt: Callable[[], None] = _nothing
    """Cuts a running step short; any thread. Called when the engine closes, whose results nobody waits for."""
    dispose: Callable[[], None] = _nothing
    clock: Callable[[], float] = time.monotonic
    checks_integrity: bool = False
    """Check every owner's bookkeeping whenever the engine goes idle."""
