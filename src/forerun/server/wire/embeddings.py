"""The body of /v1/embeddings, as OpenAI has it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from forerun.server.wire.fields import Wire, no_effect

MAX_INPUTS: Final = 2048
MAX_TOKENS: Final = 300_000
"""Of all inputs together; both are OpenAI's limits."""

Token = Annotated[int, Field(ge=0, le=2**31 - 1)]


class EmbeddingRequest(Wire):
    """Texts to be turned into vectors."""

    model: str = Field(description="A model's name, its file's name or an alias.")
    input: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[list[Token]], Field(min_length=1)]
    ) = Field(description=f"A text, its token ids, or a list of up to {MAX_INPUTS} of either.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: the vector's float32 numbers, little-endian. Default: float."
    )
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Must be the model's own number: files do not say whether shorter vectors mean anything."
    )
    user: Annotated[str | None, no_effect("for the operator of a hosted service; nothing here looks at it")] = None
