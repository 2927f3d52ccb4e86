"""`POST /v1/chat/completions`: what comes in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from forerun.server.wire.common import TextRequest, TokenCount
from forerun.server.wire.fields import Wire, no_effect, only, refused

_NO_AUDIO = "this server answers text alone, and keeps none of its answers as audio"
_NO_FILES = "nothing is stored or converted here; send text, images or recordings"
_OLD_FUNCTIONS = "deprecated by OpenAI; use tools and tool_choice"


class CacheBreakpoint(Wire):
    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class ImageUrl(Wire):
    url: str = Field(description="data:image/png;base64,..., or an address of a host that the server fetches from.")
    detail: Annotated[
        Literal["auto", "low", "high", "original"] | None,
        no_effect("the model's projector decides how it is looked at"),
    ] = None


class InputAudio(Wire):
    """A recording."""

    data: str = Field(description="The file, in base64.")
    format: Literal["wav", "mp3", "flac"] = Field(description="What is read is told from the file's first bytes.")


_PARTS = ("text", "refusal", "image_url", "input_audio")


class ContentPart(Wire):
    """A piece of a message."""

    type: Annotated[str, *only(lambda kind: kind in _PARTS, f"must be text, image_url or input_audio: {_NO_FILES}")]
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = Field(
        None, description="The conversation up to this message is pinned in host memory, for 30 minutes or its ttl."
    )
    image_url: ImageUrl | None = Field(None, description="In messages of the user and of tools.")
    input_audio: InputAudio | None = Field(None, description="In messages of the user and of tools.")
    file: refused(_NO_FILES) = None  # type: ignore[valid-type]


def _parts_or_text(value: Any) -> str:
    return "Parts" if isinstance(value, list) else "Text"


MessageContent = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[ContentPart], Tag("Parts")], Discriminator(_parts_or_text)
]


class CalledFunction(Wire):
    name: str
    arguments: str = Field(description="JSON text, as the model wrote it.")


class CalledTool(Wire):
    """A call that an earlier answer made."""

    id: str
    type: Annotated[str, *only(lambda kind: kind == "function", "must be 'function': custom tools are not supported")]
    function: CalledFunction


class ChatMessage(Wire):
    """One message. Content that is null or left out counts as empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: MessageContent | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(
        None, description="Reasoning of an earlier answer, for templates that keep it."
    )
    refusal: str | None = None
    annotations: Annotated[list[Any] | None, no_effect("part of answers; templates have no place for it")] = None
    audio: refused(_NO_AUDIO) = None  # type: ignore[valid-type]
    function_call: refused(_OLD_FUNCTIONS) = None  # type: ignore[valid-type]


class FunctionDefinition(Wire):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments.")
    strict: bool | None = None


class ToolDefinition(Wire):
    """A function that the model may call."""

    type: Annotated[str, *only(lambda kind: kind == "function", "must be 'function': custom tools are not supported")]
    function: FunctionDefinition


class NamedFunction(Wire):
    name: str


class NamedTool(Wire):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Wire):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedToolsChoice(Wire):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "Word"
    return "Allowed" if value.get("type") == "allowed_tools" else "Named"


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")]
    | Annotated[NamedTool, Tag("Named")]
    | Annotated[AllowedToolsChoice, Tag("Allowed")],
    Discriminator(_kind),
]


class JsonSchemaFormat(Wire):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema", description="Without it: any JSON object.")
    strict: bool | None = Field(None, description="The schema is enforced either way.")


class ResponseFormat(Wire):
    """What the answer must look like. `schema` beside json_object is llama.cpp's way to give one."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class PredictedContent(Wire):
    type: Literal["content"]
    content: MessageContent


class PromptCacheOptions(Wire):
    mode: Annotated[
        Literal["implicit", "explicit"] | None,
        *only(lambda mode: mode == "implicit", "must be 'implicit': prefixes are found token by token, without marks"),
    ] = None
    ttl: Literal["30m"] | None = Field(None, description="The prompt is pinned in host memory for that long.")


class ChatRequest(TextRequest):
    """A conversation to be answered. Fields as OpenAI names them, then extensions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: TokenCount | None = Field(
        None, description="As max_tokens; where both are given they must agree."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call an answer.")
    response_format: ResponseFormat | None = Field(
        None,
        description="With tools an answer is either calls or in this format; refused where the model marks neither.",
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Given to the chat template; refused where it has no use for it."
    )
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="Given to the chat template; refused where it has no use for it."
    )
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority", "fast"] | None,
        *only(lambda tier: tier != "scale", "must be auto, default, flex (admitted after others) or priority (before)"),
    ] = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(
        None, description="24h: the prompt is pinned in host memory for that long."
    )
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_key: Annotated[
        str | None, no_effect("routes requests to the machine with their prefix; here there is one, which finds it")
    ] = None
    prediction: Annotated[
        PredictedContent | None,
        no_effect("a hint for speed: drafts are looked up in the prompt and in past answers instead"),
    ] = None
    metadata: Annotated[dict[str, str] | None, no_effect("labels of stored completions; nothing is stored")] = None
    safety_identifier: Annotated[
        str | None, no_effect("for the operator of a hosted service; nothing here looks at it")
    ] = None
    store: Annotated[bool | None, *only(lambda value: not value, "nothing is stored here; send false")] = None
    modalities: Annotated[
        list[str] | None, *only(lambda kinds: kinds == ["text"], "must be ['text']: this server answers text")
    ] = None
    audio: refused("this server answers text") = None  # type: ignore[valid-type]
    moderation: refused("there is no moderation model here") = None  # type: ignore[valid-type]
    web_search_options: refused("this server does not search the web") = None  # type: ignore[valid-type]
    functions: refused(_OLD_FUNCTIONS) = None  # type: ignore[valid-type]
    function_call: refused(_OLD_FUNCTIONS) = None  # type: ignore[valid-type]

    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further names for the chat template, such as enable_thinking."
    )
