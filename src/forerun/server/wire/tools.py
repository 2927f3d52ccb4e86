"""What the routes beside the APIs read: texts and tokens, and what to do with the prefix cache."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AliasChoices, Field, model_validator

from forerun.server.wire.chat import ChatMessage, ToolDefinition
from forerun.server.wire.fields import Wire

_MODEL: Final = "One of the models' names; may be left out where there is but one model."


class PromptFields(Wire):
    """A prompt, in one of three forms."""

    model: str | None = Field(None, description=_MODEL)
    prompt: str | list[int] | None = Field(None, description="Text or token ids, as they stand.")
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = Field(
        None, description="A conversation, through the chat template."
    )
    tools: list[ToolDefinition] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def one_form(self) -> PromptFields:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is None and self.tools is not None:
            raise ValueError("tools go with messages")
        return self


class TokenizeRequest(PromptFields):
    """A prompt to be tokenised; `content` is llama.cpp's name for it."""

    prompt: str | None = Field(None, validation_alias=AliasChoices("prompt", "content"))
    with_pieces: bool | None = Field(None, description="Tokens as objects of id and piece.")


class DetokenizeRequest(Wire):
    model: str | None = Field(None, description=_MODEL)
    tokens: Annotated[list[int], Field(max_length=4_000_000)]


class TemplateRequest(Wire):
    model: str | None = Field(None, description=_MODEL)
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[ToolDefinition] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CachePrompt(PromptFields):
    """A prompt to look up in the prefix cache, or to warm."""

    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    adapters: dict[str, float] | str | None = None


class PinRequest(CachePrompt):
    seconds: Annotated[float, Field(gt=0)] = Field(description="How long the prompt stays in host memory.")


class ExplainRequest(Wire):
    model: str | None = Field(None, description=_MODEL)
    id: str = Field(description="The id of a response, of any API.")
    choice: Annotated[int, Field(ge=0)] = 0


class ClearRequest(Wire):
    model: str | None = Field(None, description=_MODEL)
    cache_salt: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="What was cached under this salt; without it, what was cached without one."
    )
