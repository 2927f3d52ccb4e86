"""`POST /v1/completions`: what comes in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forerun.core.request import MAX_LOGPROBS
from forerun.server.wire.common import TextRequest
from forerun.server.wire.fields import Mark, refused


class CompletionRequest(TextRequest):
    """Prompts to be continued as they stand. Fields as OpenAI names them, then extensions."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="Text, token ids, or a list of either: each is answered n times."
    )
    echo: bool | None = Field(None, description="The answer begins with the prompt; not together with logprobs.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="Log probabilities of each token and of so many alternatives."
    )
    best_of: Annotated[int | None, Mark("honoured in part", "must equal n: answers are not ranked")] = None
    suffix: refused("filling text in between is not supported; put the suffix into the prompt") = None  # type: ignore[valid-type]
