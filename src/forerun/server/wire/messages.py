"""Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: what comes in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from forerun.server.wire.common import MODEL_NAME, SamplingFields, TokenCount
from forerun.server.wire.fields import Wire, no_effect, only, refused

_NO_DOCUMENTS = "documents are not read here; send text or images"
_NO_FILES = "nothing is stored here; send the image itself"
_NO_HOSTED_TOOLS = "this server runs no tools itself, and knows none but those that are sent with a schema"
_NO_PLACE = "chat templates have no place for it"
_OPERATOR = "for the operator of a hosted service; nothing here looks at it"


class CacheControl(Wire):
    """The prompt up to the end of this block's message is pinned."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Annotated[str | None, no_effect("prefixes are kept apart by key and cache_salt")] = None


class TextBlock(Wire):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any] | None, no_effect(_NO_PLACE)] = None


class ThinkingBlock(Wire):
    """Thinking of an earlier answer, for templates that keep it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Not verified. Holds the thinking where the answer left it out.")


class DirectCaller(Wire):
    type: Annotated[str, *only(lambda kind: kind == "direct", "must be 'direct': no programs run here")]


class ToolUseBlock(Wire):
    """A call that an earlier answer made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Annotated[DirectCaller | None, no_effect("the only one there is")] = None
    toolset_name: refused("there are no toolsets here") = None  # type: ignore[valid-type]


class Base64Image(Wire):
    """The image itself."""

    type: Literal["base64"]
    media_type: Annotated[str, no_effect("what it is is told from its bytes: JPEG, PNG, GIF or WebP")]
    data: str


class ImageAt(Wire):
    """Where the image is."""

    type: Literal["url"]
    url: str = Field(description="data:image/png;base64,..., or an address of a host that the server fetches from.")


class OtherSource(Wire, extra="allow"):
    type: Annotated[str, *only(lambda _: False, f"must be base64 or url: {_NO_FILES}")]


def _source_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"base64": "Data", "url": "At"}.get(str(kind), "Other")


ImageSource = Annotated[
    Annotated[Base64Image, Tag("Data")] | Annotated[ImageAt, Tag("At")] | Annotated[OtherSource, Tag("Other")],
    Discriminator(_source_tag),
]


class ImageTransformations(Wire):
    oversized_image: Annotated[
        Literal["downsize", "error"] | None,
        *only(lambda what: what == "downsize", "must be 'downsize': the model's projector scales what it looks at"),
    ] = None


class ImageBlock(Wire):
    """An image, in what a user says or a tool gave."""

    type: Literal["image"]
    source: ImageSource
    cache_control: CacheControl | None = None
    transformations: ImageTransformations | None = None


class OtherBlock(Wire, extra="allow"):
    type: Annotated[
        str,
        *only(
            lambda _: False,
            f"must be text, image, thinking, tool_use or tool_result: {_NO_DOCUMENTS}; {_NO_HOSTED_TOOLS}",
        ),
    ]


_TAGS = {"text": "Text", "image": "Image", "thinking": "Thinking", "tool_use": "Call", "tool_result": "Result"}


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return _TAGS.get(str(kind), "Other")


def _text_tag(value: Any) -> str:
    return "Text" if _tag(value) == "Text" else "Other"


def _shown_tag(value: Any) -> str:
    return tag if (tag := _tag(value)) in ("Text", "Image") else "Other"


Shown = Annotated[
    Annotated[TextBlock, Tag("Text")] | Annotated[ImageBlock, Tag("Image")] | Annotated[OtherBlock, Tag("Other")],
    Discriminator(_shown_tag),
]

TextOnly = Annotated[
    Annotated[TextBlock, Tag("Text")] | Annotated[OtherBlock, Tag("Other")],
    Discriminator(_text_tag),
]


class ToolResultBlock(Wire):
    """What a called tool gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Shown] | None = None
    is_error: bool | None = Field(None, description='true: the model reads "Error: " before the content.')
    cache_control: CacheControl | None = None
    toolset_name: refused("there are no toolsets here") = None  # type: ignore[valid-type]


Block = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[ImageBlock, Tag("Image")]
    | Annotated[ThinkingBlock, Tag("Thinking")]
    | Annotated[ToolUseBlock, Tag("Call")]
    | Annotated[ToolResultBlock, Tag("Result")]
    | Annotated[OtherBlock, Tag("Other")],
    Discriminator(_tag),
]


class InputMessage(Wire):
    """One message. Neighbours of one role are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolDefinition(Wire):
    """A tool that the model may call."""

    type: Annotated[str | None, *only(lambda kind: kind == "custom", f"must be 'custom': {_NO_HOSTED_TOOLS}")] = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
    input_schema: dict[str, Any] = Field(description="JSON Schema of the input.")
    description: str | None = None
    strict: bool | None = None
    input_examples: list[dict[str, Any]] | None = Field(None, description="Shown to the model with the description.")
    cache_control: CacheControl | None = Field(None, description="All tools are pinned.")
    allowed_callers: Annotated[
        list[str] | None, *only(lambda names: names == ["direct"], "must be ['direct']: no programs run here")
    ] = None
    defer_loading: Annotated[
        bool | None, *only(lambda value: not value, "there is no tool search; send the tools that are needed")
    ] = None
    eager_input_streaming: Annotated[bool | None, no_effect("inputs are always streamed as they come")] = None


class ToolChoiceField(Wire):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="With type tool: this one must be called.")
    disable_parallel_tool_use: bool | None = Field(None, description="true: at most one call an answer.")


class ThinkingField(Wire):
    """Whether the chat template has the model think (`enable_thinking`). Refused where it has no use for it."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive", "between_tools"],
        *only(lambda kind: kind != "between_tools", "must be enabled, disabled or adaptive (the template decides)"),
    ]
    budget_tokens: Annotated[
        Annotated[int, Field(ge=1024)] | None, no_effect("the model is not told; max_tokens limits thinking, too")
    ] = None
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="omitted: thinking is left out of the answer and comes in its signature. Else it is whole."
    )


class OutputFormat(Wire):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema", description="What the answer's text is, after any thinking.")


class OutputConfig(Wire):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Given to the chat template as `reasoning_effort`; refused where it has no use for it."
    )
    format: OutputFormat | None = None
    task_budget: refused("nothing here spans several requests") = None  # type: ignore[valid-type]


class Metadata(Wire):
    user_id: Annotated[str | None, no_effect(_OPERATOR)] = None


class Diagnostics(Wire):
    previous_message_id: refused("nothing is stored here; /cache/explain says what was reused and why") = None  # type: ignore[valid-type]


def _keeps_all(edits: Any) -> bool:
    return all(edit.get("type") == "clear_thinking_20251015" and edit.get("keep") == "all" for edit in edits or ())


class ContextManagement(Wire):
    edits: Annotated[
        list[dict[str, Any]] | None,
        *only(_keeps_all, "may hold clear_thinking_20251015 with keep 'all' alone: no prompt is changed here"),
    ] = None


class CountTokensRequest(Wire):
    """What a prompt consists of."""

    model: str = Field(description=MODEL_NAME)
    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: str | list[TextOnly] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = Field(None, description="The whole prompt is pinned.")
    speed: Annotated[
        Literal["standard", "fast"] | None, *only(lambda speed: speed == "standard", "must be 'standard'")
    ] = None
    context_management: ContextManagement | None = None
    mcp_servers: Annotated[
        list[Any] | None, *only(lambda servers: not servers, f"must be empty: {_NO_HOSTED_TOOLS}")
    ] = None
    user_profile_id: Annotated[str | None, no_effect(_OPERATOR)] = None
    workspace_id: Annotated[str | None, no_effect(_OPERATOR)] = None
    betas: Annotated[list[str] | None, no_effect("fields count, not the names of betas")] = None


class MessagesRequest(SamplingFields, CountTokensRequest):
    """A conversation to be answered. Fields as Anthropic names them, then extensions."""

    max_tokens: TokenCount = Field(
        description="Tokens of the answer at most, thinking included. 0 is not taken: /cache/warm computes a prompt."
    )
    stop_sequences: list[str] | None = Field(None, description="The answer ends before the first of these: up to 16.")
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Annotated[Literal["auto", "standard_only"] | None, no_effect("there is one tier")] = None
    container: refused(_NO_HOSTED_TOOLS) = None  # type: ignore[valid-type]
    diagnostics: Diagnostics | None = None
    inference_geo: refused("this server is where it is") = None  # type: ignore[valid-type]
    compaction: refused("conversations are not compacted here") = None  # type: ignore[valid-type]
    fallbacks: refused("there is one model here") = None  # type: ignore[valid-type]
    fallback_credit_token: refused("nothing is billed here") = None  # type: ignore[valid-type]
    billing_policy: refused("nothing is billed here") = None  # type: ignore[valid-type]
    thread: refused("nothing is stored here; send the conversation itself") = None  # type: ignore[valid-type]
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Extension: further names for the chat template."
    )
