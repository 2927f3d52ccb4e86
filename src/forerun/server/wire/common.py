"""Fields that all text APIs share, and how they become SamplingParams."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, Field

from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.request import SamplingParams
from forerun.errors import InvalidRequestError
from forerun.server.wire.fields import Wire, no_effect, only

MAX_CHOICES: Final = 64
_TOKEN_ID: Final = re.compile(r"[0-9]{1,10}\Z")
_NOBODY_ASKS: Final = "for the operator of a hosted service; nothing here looks at it"

MODEL_NAME: Final = "A model's name, its file's name, an alias, or MODEL:ADAPTER for it with a LoRA adapter."

TokenCount = Annotated[int, Field(ge=1, le=2**31 - 1)]


class StreamOptions(Wire):
    """What a stream tells beside the answer."""

    include_usage: bool | None = Field(None, description="One more chunk, without choices, with the usage.")
    include_obfuscation: Annotated[
        bool | None, *only(lambda value: not value, "streams are not padded here; leave it out or send false")
    ] = None
    include_progress: bool | None = Field(
        None, description="Extension: chunks without choices that say how far the prompt has been read, with an ETA."
    )


class GrammarField(Wire):
    """What the answer must look like."""

    type: Literal["lark", "regex", "gbnf", "json_schema"]
    value: str | dict[str, Any] | bool = Field(description="The grammar as text; a schema for json_schema.")


class SamplingFields(Wire):
    """How any API's answers may be sampled and scheduled: names of OpenAI, then extensions under the names of llama.cpp
    and vLLM."""

    temperature: float | None = Field(None, description="0 always takes the likeliest token. Default: 1.")
    top_p: float | None = None
    seed: int | None = Field(
        None,
        description="Same seed, same answer, but for near ties that rounding decides: a cached prompt or company moves "
        "it. Further choices get seeds that follow from it.",
    )
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(
        None, description="Added to the logits of token ids; -100 bans the token."
    )
    top_k: int | None = Field(None, description="Keep the k likeliest tokens; 0 keeps all.")
    min_p: float | None = Field(None, description="Drop tokens p times less likely than the likeliest.")
    typical_p: float | None = Field(
        None,
        description="Locally typical sampling; 1 is off. `typical` is the same.",
        validation_alias=AliasChoices("typical_p", "typical"),
    )
    repetition_penalty: float | None = Field(None, description="Above 1 discourages repetition.")
    penalty_last_n: int | None = Field(None, description="How many of the latest tokens penalties look at; -1 all.")
    ignore_eos: bool | None = Field(None, description="Go on past the model's end of turn.")
    stop_token_ids: list[int] | None = Field(None, description="The answer ends with the first of these tokens.")
    grammar: GrammarField | str | None = Field(
        None, description="What the answer must match: an object, or a text in llama.cpp's GBNF."
    )
    speculation: Literal["auto", "off"] | int | None = Field(
        None, description="Drafted tokens a step at most: auto, off or a number. Never more than the server does."
    )
    adapters: dict[str, float] | str | None = Field(
        None, description="LoRA adapters the server was started with, by name, each with its scale."
    )
    cache_prompt: bool | None = Field(None, description="false: compute the whole prompt, reuse nothing.")
    cache_salt: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="Prefixes are reused only among requests with the same key and the same salt."
    )
    priority: Annotated[int, Field(ge=-100, le=100)] | None = Field(
        None, description="Higher ones are admitted first. Default: 0."
    )
    deadline: Annotated[float, Field(gt=0, le=86_400)] | None = Field(
        None,
        description="Seconds within which the answer should begin: among equals of priority the earliest goes first.",
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds until the answer is given up. The server may allow less."
    )

    def sampling(
        self, *, max_tokens: int | None, logprobs: int | None = None, stop: str | Sequence[str] | None = None
    ) -> SamplingParams:
        """Raises InvalidRequestError, naming the field."""
        given = {name: value for name in _AS_THEY_ARE if (value := getattr(self, name)) is not None}
        if self.logit_bias:
            given["logit_bias"] = token_biases(self.logit_bias)
        given.setdefault("temperature", 1.0)
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        return SamplingParams(**given, stop=stops, max_tokens=max_tokens, logprobs=logprobs)


class TextRequest(SamplingFields):
    """What requests for text have in common in OpenAI's older APIs."""

    model: str = Field(description=MODEL_NAME)
    max_tokens: TokenCount | None = Field(
        None,
        description="Tokens of the answer at most. Without it the answer ends with the model's turn or the context.",
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="Answers to give; they share the computed prompt."
    )
    stop: str | list[str] | None = Field(None, description="The answer ends before the first of these: up to 16.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str | None, no_effect(_NOBODY_ASKS)] = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_progress(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_progress)

    def check_stream(self) -> None:
        """Raise InvalidRequestError for options of a stream where none is asked for."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options", "is for streams; set stream to true, or leave it out")


_AS_THEY_ARE: Final = (
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "penalty_last_n",
    "ignore_eos",
    "stop_token_ids",
    "speculation",
    "adapters",
)


def token_biases(given: Mapping[str, float]) -> dict[int, float]:
    """Keys as token ids. Raises InvalidRequestError."""
    for key in given:
        if not _TOKEN_ID.match(key):
            raise InvalidRequestError("logit_bias", f"keys are token ids (0 and up), got {key[:40]!r}")
    return {int(key): bias for key, bias in given.items()}


def grammar_of(given: GrammarField | str | None) -> Grammar | None:
    """Raises InvalidRequestError where the kind and the value do not go together."""
    if given is None:
        return None
    if isinstance(given, str):
        return Grammar(GrammarKind.GBNF, given)
    kind = GrammarKind(given.type)
    if kind is GrammarKind.JSON_SCHEMA:
        return json_schema_grammar(given.value, "grammar.value")
    if not isinstance(given.value, str):
        raise InvalidRequestError("grammar.value", f"is text for {given.type}, got {type(given.value).__name__}")
    return Grammar(kind, given.value)


def json_schema_grammar(schema: object, field: str) -> Grammar:
    """A grammar for a JSON Schema, given as a value or as text. Raises InvalidRequestError."""
    import msgspec

    if isinstance(schema, str):
        return Grammar(GrammarKind.JSON_SCHEMA, schema)
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(field, f"is a JSON Schema (an object), got {type(schema).__name__}")
    return Grammar(GrammarKind.JSON_SCHEMA, msgspec.json.encode(schema).decode())
