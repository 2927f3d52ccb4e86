"""From a chat request as it came over the wire to the job it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from forerun.chat.formats import Tool
from forerun.chat.messages import MEDIA_ROLES
from forerun.core.grammar import Grammar, GrammarKind
from forerun.errors import InvalidRequestError
from forerun.media.kind import MediaKind
from forerun.media.parts import media_part
from forerun.media.sources import Base64, MediaSource, Url
from forerun.server.jobs import ChatJob, Message, Pin, ToolChoice
from forerun.server.tools import allowed_names, check_tools, required_choice
from forerun.server.wire.chat import (
    AllowedToolsChoice,
    ChatMessage,
    ChatRequest,
    ContentPart,
    NamedTool,
    ResponseFormat,
    ToolDefinition,
)
from forerun.server.wire.common import grammar_of, json_schema_grammar

ANY_OBJECT: Final = '{"type": "object"}'
TIERS: Final = {"flex": -10, "priority": 10, "fast": 10}
"""What a service tier adds to the priority."""
_MOST_BREAKPOINTS: Final = 4
_MEDIA_FIELDS: Final = ("image_url", "input_audio")
"""Of parts, which are of the type of that name."""
HALF_HOUR, DAY = 1800.0, 86_400.0


def chat_job(body: ChatRequest, tenant: str) -> ChatJob:
    """Raises InvalidRequestError, naming the field."""
    body.check_stream()
    tools = tools_of(body.tools)
    return ChatJob(
        messages=template_messages(body.messages),
        params=body.sampling(max_tokens=_max_tokens(body), logprobs=_logprobs(body), stop=body.stop),
        n=body.n or 1,
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        grammar=_grammar(body),
        template_kwargs=_template_kwargs(body),
        tenant=tenant,
        cache_prompt=body.cache_prompt is not False,
        priority=(body.priority or 0) + TIERS.get(body.service_tier or "", 0),
        deadline=body.deadline,
        timeout=body.timeout,
        pins=_pins(body),
        wants_progress=body.wants_progress,
    )


def tools_of(given: Sequence[ToolDefinition] | None) -> list[Tool]:
    """Raises InvalidRequestError where two have one name."""
    functions = [one.function for one in given or ()]
    tools = [
        Tool(function.name, function.description or "", function.parameters, strict=bool(function.strict))
        for function in functions
    ]
    check_tools(tools)
    return tools


def template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Messages as they came, without what they do not say; the chat template's side makes of them what it can render.

    Raises InvalidRequestError, naming the part.
    """
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: ChatMessage, path: str) -> Message:
    given = message.model_dump(exclude_none=True)
    if message.content is None and message.refusal is not None:
        given["content"] = message.refusal
    if isinstance(message.content, list):
        given["content"] = [
            _template_part(part, given["content"][index], message.role, f"{path}.content[{index}]")
            for index, part in enumerate(message.content)
        ]
    return given


def _template_part(part: ContentPart, given: dict[str, Any], role: str, path: str) -> Mapping[str, Any]:
    """`given`: the part as it came, which text stays."""
    for name in _MEDIA_FIELDS:
        if part.type != name and getattr(part, name) is not None:
            raise InvalidRequestError(f"{path}.{name}", f"is for parts of type {name}, this is of type {part.type}")
    if part.type not in _MEDIA_FIELDS:
        return given
    field = f"{path}.{part.type}"
    if getattr(part, part.type) is None:
        raise InvalidRequestError(field, f"is required for the type {part.type}")
    if role not in MEDIA_ROLES:
        raise InvalidRequestError(field, f"belongs to messages of the user or of tools, not of {role!r}")
    source = _source(part, field)
    return media_part(source.kind, source)


def _source(part: ContentPart, field: str) -> MediaSource:
    if part.image_url is not None:
        return MediaSource(MediaKind.IMAGE, field, Url(part.image_url.url))
    assert part.input_audio is not None
    return MediaSource(MediaKind.AUDIO, f"{field}.data", Base64(part.input_audio.data))


def _max_tokens(body: ChatRequest) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequestError("max_tokens", f"is {old}, but max_completion_tokens is {new}; give one of the two")
    return new if old is None else old


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs", "needs logprobs; set it to true")
    return (body.top_logprobs or 0) if body.logprobs else None


def _grammar(body: ChatRequest) -> Grammar | None:
    wanted = None if body.response_format is None else response_grammar(body.response_format)
    given = grammar_of(body.grammar)
    if wanted is not None and given is not None:
        raise InvalidRequestError(
            "grammar", "response_format says already what the answer looks like; give one of them"
        )
    return given or wanted


def response_grammar(given: ResponseFormat) -> Grammar | None:
    """What a response_format makes of the answer. Raises InvalidRequestError."""
    if given.type == "text":
        return None
    if given.type == "json_object":
        if given.schema_ is not None:
            return json_schema_grammar(given.schema_, "response_format.schema")
        return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT)
    if given.json_schema is None:
        raise InvalidRequestError("response_format.json_schema", "is required for the type json_schema")
    schema = given.json_schema.schema_
    if schema is None:
        return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT)
    return json_schema_grammar(schema, "response_format.json_schema.schema")


def _tool_choice(body: ChatRequest, tools: Sequence[Tool]) -> ToolChoice:
    match body.tool_choice:
        case None:
            return ToolChoice()
        case NamedTool(function=function):
            return ToolChoice("required", allowed_names((function.name,), tools))
        case AllowedToolsChoice(allowed_tools=allowed):
            return ToolChoice(allowed.mode, allowed_names([tool.function.name for tool in allowed.tools], tools))
        case "required":
            return required_choice(tools)
        case mode:
            return ToolChoice(mode)


def _template_kwargs(body: ChatRequest) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    if body.verbosity is not None:
        given["verbosity"] = body.verbosity
    if body.reasoning_effort is not None:
        given["reasoning_effort"] = body.reasoning_effort
    return given


def _pins(body: ChatRequest) -> list[Pin]:
    marked = [(index + 1, seconds) for index, message in enumerate(body.messages) if (seconds := _marked_for(message))]
    seconds = DAY if body.prompt_cache_retention == "24h" else 0.0
    if body.prompt_cache_options is not None and body.prompt_cache_options.ttl is not None:
        seconds = max(seconds, HALF_HOUR)
    if seconds:
        marked.append((len(body.messages), seconds))
    return [Pin(messages, seconds) for messages, seconds in marked[-_MOST_BREAKPOINTS:]]


def _marked_for(message: ChatMessage) -> float:
    """Seconds that a breakpoint in the message asks for; 0 where there is none."""
    parts = message.content if isinstance(message.content, list) else ()
    marks = [part.prompt_cache_breakpoint for part in parts if part.prompt_cache_breakpoint is not None]
    return max((DAY / 2 if mark.ttl == "12h" else HALF_HOUR for mark in marks), default=0.0)
