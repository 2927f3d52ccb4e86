"""`POST /v1/responses`: what comes in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from forerun.server.wire.common import MODEL_NAME, SamplingFields, TokenCount
from forerun.server.wire.fields import Wire, no_effect, only, refused

_NO_FILES = "nothing is stored or converted here; send text or images"
_STATELESS = "nothing is stored here; send the conversation itself as input"
_NO_HOSTED_TOOLS = "this server runs no tools itself; only functions can be called"
_OF_ANSWERS = "part of answers; nothing is looked up by it"
_OPERATOR = "for the operator of a hosted service; nothing here looks at it"

Status = Literal["in_progress", "completed", "incomplete"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class CacheBreakpoint(Wire):
    """The prompt up to the end of this message is pinned."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class TextPart(Wire):
    """A piece of a message: what a user or the instructions say, or what an earlier answer said."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None
    annotations: Annotated[list[Any] | None, no_effect(_OF_ANSWERS)] = None
    logprobs: Annotated[list[Any] | None, no_effect(_OF_ANSWERS)] = None


class RefusalPart(Wire):
    """An earlier answer's refusal; read as its text."""

    type: Literal["refusal"]
    refusal: str


class ImagePart(Wire):
    """An image, in what a user says or a function gave."""

    type: Literal["input_image"]
    image_url: str | None = Field(
        None, description="data:image/png;base64,..., or an address of a host that the server fetches from. Required."
    )
    detail: Annotated[
        Literal["auto", "low", "high", "original"] | None,
        no_effect("the model's projector decides how it is looked at"),
    ] = None
    file_id: refused(_NO_FILES) = None  # type: ignore[valid-type]
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class OtherPart(Wire, extra="allow"):
    type: Annotated[
        str, *only(lambda _: False, f"must be input_text, input_image, output_text or refusal: {_NO_FILES}")
    ]


_PART_TAGS = {
    "input_text": "Text",
    "output_text": "Text",
    "text": "Text",
    "refusal": "Refusal",
    "input_image": "Image",
}


def _part_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return _PART_TAGS.get(str(kind), "Other")


Part = Annotated[
    Annotated[TextPart, Tag("Text")]
    | Annotated[RefusalPart, Tag("Refusal")]
    | Annotated[ImagePart, Tag("Image")]
    | Annotated[OtherPart, Tag("Other")],
    Discriminator(_part_tag),
]


class MessageItem(Wire):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    type: Literal["message"] | None = None
    id: Annotated[str | None, no_effect(_OF_ANSWERS)] = None
    status: Annotated[Status | None, no_effect(_OF_ANSWERS)] = None
    phase: Annotated[Literal["commentary", "final_answer"] | None, no_effect("chat templates have no place for it")] = (
        None
    )


class DirectCaller(Wire):
    type: Annotated[str, *only(lambda kind: kind == "direct", "must be 'direct': no programs run here")]


class FunctionCallItem(Wire):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = Field(description="JSON text, as the model wrote it.")
    id: Annotated[str | None, no_effect(_OF_ANSWERS)] = None
    status: Annotated[Status | None, no_effect(_OF_ANSWERS)] = None
    caller: Annotated[DirectCaller | None, no_effect("the only one there is")] = None
    namespace: refused("functions have no namespaces here") = None  # type: ignore[valid-type]
    async_: Annotated[bool | None, *only(lambda value: not value, "calls are not asynchronous here")] = Field(
        None, alias="async"
    )


class FunctionOutputItem(Wire):
    """What a called function gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Part]
    id: Annotated[str | None, no_effect(_OF_ANSWERS)] = None
    status: Annotated[Status | None, no_effect(_OF_ANSWERS)] = None
    name: Annotated[str | None, no_effect("the call's own name is taken")] = None
    caller: Annotated[DirectCaller | None, no_effect("the only one there is")] = None
    namespace: refused("functions have no namespaces here") = None  # type: ignore[valid-type]


class ReasoningText(Wire):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Wire):
    """Reasoning of an earlier answer, for templates that keep it. Its content is read, or its summary without one."""

    type: Literal["reasoning"]
    id: Annotated[str | None, no_effect(_OF_ANSWERS)] = None
    summary: list[ReasoningText] = Field(default_factory=list)
    content: list[ReasoningText] | None = None
    encrypted_content: refused("reasoning is given and taken in the clear") = None  # type: ignore[valid-type]
    status: Annotated[Status | None, no_effect(_OF_ANSWERS)] = None


class OtherItem(Wire, extra="allow"):
    type: Annotated[
        str,
        *only(
            lambda _: False,
            f"must be message, function_call, function_call_output or reasoning: {_NO_HOSTED_TOOLS}, nothing is stored",
        ),
    ]


_ITEM_TAGS = {
    None: "Message",
    "message": "Message",
    "function_call": "Call",
    "function_call_output": "Output",
    "reasoning": "Reasoning",
}


def _item_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", "")
    return _ITEM_TAGS.get(kind, "Other") if kind is None or isinstance(kind, str) else "Other"


InputItem = Annotated[
    Annotated[MessageItem, Tag("Message")]
    | Annotated[FunctionCallItem, Tag("Call")]
    | Annotated[FunctionOutputItem, Tag("Output")]
    | Annotated[ReasoningItem, Tag("Reasoning")]
    | Annotated[OtherItem, Tag("Other")],
    Discriminator(_item_tag),
]


class FunctionTool(Wire):
    """A function that the model may call."""

    type: Annotated[str, *only(lambda kind: kind == "function", f"must be 'function': {_NO_HOSTED_TOOLS}")]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments.")
    strict: bool | None = None
    allowed_callers: Annotated[
        list[str] | None, *only(lambda names: names == ["direct"], "must be ['direct']: no programs run here")
    ] = None
    defer_loading: Annotated[
        bool | None, *only(lambda value: not value, "there is no tool search; send the tools that are needed")
    ] = None
    output_schema: Annotated[dict[str, Any] | None, no_effect("chat templates have no place for it")] = None
    async_: Annotated[bool | None, *only(lambda value: not value, "calls are not asynchronous here")] = Field(
        None, alias="async"
    )


class NamedFunction(Wire):
    type: Annotated[
        str, *only(lambda kind: kind == "function", f"must be 'function' or 'allowed_tools': {_NO_HOSTED_TOOLS}")
    ]
    name: str


class AllowedTools(Wire):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedFunction]


def _choice_tag(value: Any) -> str:
    if isinstance(value, str):
        return "Word"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "Allowed" if kind == "allowed_tools" else "Named"


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")]
    | Annotated[NamedFunction, Tag("Named")]
    | Annotated[AllowedTools, Tag("Allowed")],
    Discriminator(_choice_tag),
]


class TextFormat(Wire):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, no_effect("the schema's name is echoed")] = None
    description: Annotated[str | None, no_effect("say it in the prompt; it is echoed")] = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: Annotated[bool | None, no_effect("a schema is always enforced")] = None


class TextConfig(Wire):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="Given to the chat template; refused where it has no use for it."
    )


class ReasoningConfig(Wire):
    effort: Effort | None = Field(None, description="Given to the chat template; refused where it has no use for it.")
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Reasoning comes as the summary of its item, whole; without it, as its content."
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="As `summary`.")
    context: Annotated[
        Literal["auto", "current_turn", "all_turns"] | None,
        *only(lambda value: value == "auto", "must be 'auto': the chat template decides"),
    ] = None
    mode: Annotated[str | None, *only(lambda value: value == "standard", "must be 'standard'")] = None


class ResponseStreamOptions(Wire):
    include_obfuscation: Annotated[
        bool | None, *only(lambda value: not value, "streams are not padded here; leave it out or send false")
    ] = None


class ResponseCacheOptions(Wire):
    """Prefixes are found token by token, without marks; a ttl pins."""

    mode: Annotated[
        Literal["implicit", "explicit"] | None,
        *only(lambda mode: mode == "implicit", "must be 'implicit': prefixes are found without marks"),
    ] = None
    ttl: Literal["30m", "12h"] | None = Field(None, description="The prompt is pinned in host memory for that long.")
    comparison_response_id: refused(_STATELESS) = None  # type: ignore[valid-type]
    prewarm: Annotated[bool | None, *only(lambda value: not value, "use /cache/warm")] = None


_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")


def _is_included(names: list[str]) -> bool:
    return all(name in _INCLUDED for name in names)


class ResponsesRequest(SamplingFields):
    """A conversation to be answered. Fields as OpenAI names them, then extensions."""

    model: str = Field(description=MODEL_NAME)
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = Field(None, description="What the system message says, before that of the input.")
    max_output_tokens: TokenCount | None = Field(None, description="Tokens of the answer at most, reasoning included.")
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call an answer.")
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[
        list[str] | None,
        *only(_is_included, f"may hold {' and '.join(_INCLUDED)}; the latter changes nothing"),
    ] = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = Field(None, description="Comes back with the response.")
    store: Annotated[bool | None, *only(lambda value: not value, f"{_STATELESS}; send false")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        *only(lambda value: value == "disabled", "must be 'disabled': nothing is dropped from a prompt unasked"),
    ] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None,
        *only(
            lambda tier: tier not in ("scale", "ultrafast"),
            "must be auto, default, flex (admitted after others), priority or fast (before)",
        ),
    ] = None
    prompt_cache_key: Annotated[
        str | None, no_effect("routes requests to the machine with their prefix; here there is one, which finds it")
    ] = None
    prompt_cache_options: ResponseCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(
        None, description="24h: the prompt is pinned in host memory for that long."
    )
    max_tool_calls: Annotated[int | None, no_effect("counts calls of hosted tools; there are none")] = None
    user: Annotated[str | None, no_effect(_OPERATOR)] = None
    safety_identifier: Annotated[str | None, no_effect(_OPERATOR)] = None
    background: Annotated[bool | None, *only(lambda value: not value, _STATELESS)] = None
    background_options: refused(_STATELESS) = None  # type: ignore[valid-type]
    previous_response_id: refused(_STATELESS) = None  # type: ignore[valid-type]
    conversation: refused(_STATELESS) = None  # type: ignore[valid-type]
    prompt: refused("there are no stored prompts here; send instructions and input") = None  # type: ignore[valid-type]
    context_management: refused("conversations are not compacted here") = None  # type: ignore[valid-type]
    moderation: refused("there is no moderation model here") = None  # type: ignore[valid-type]
    image: refused("this server draws no images") = None  # type: ignore[valid-type]
    access_programs: refused("there are none here") = None  # type: ignore[valid-type]

    stop: str | list[str] | None = Field(None, description="Extension: the answer ends before the first of these.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Extension: further names for the chat template, such as enable_thinking."
    )

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or _INCLUDED[0] in (self.include or ())
