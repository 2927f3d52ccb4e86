"""From a request of the Responses API to the job it asks for, and to what its response echoes."""

from __future__ import annotations

from typing import Any, Final

from forerun.chat.formats import Tool
from forerun.core.grammar import Grammar, GrammarKind
from forerun.errors import InvalidRequestError
from forerun.server.chat_jobs import ANY_OBJECT, DAY, TIERS
from forerun.server.jobs import ChatJob, Pin, ToolChoice
from forerun.server.renaming import named_as
from forerun.server.responses.conversation import SECONDS, Conversation, conversation_of
from forerun.server.tools import allowed_names, check_tools, required_choice
from forerun.server.wire.common import grammar_of, json_schema_grammar
from forerun.server.wire.responses import AllowedTools, NamedFunction, ResponsesRequest, TextFormat

NAMES: Final = {
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "messages": "input",
    "response_format": "text.format",
}
"""Our names of fields, and this API's."""


def response_job(body: ResponsesRequest, tenant: str) -> ChatJob:
    """Raises InvalidRequestError, naming the field."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options", "is for streams; set stream to true, or leave it out")
    conversation = conversation_of(body)
    tools = _tools(body)
    with named_as(NAMES):
        logprobs = (body.top_logprobs or 0) if body.wants_logprobs else None
        params = body.sampling(max_tokens=body.max_output_tokens, logprobs=logprobs, stop=body.stop)
    return ChatJob(
        messages=conversation.messages,
        params=params,
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
        pins=_pins(body, conversation),
    )


def _tools(body: ResponsesRequest) -> list[Tool]:
    tools = [
        Tool(tool.name, tool.description or "", tool.parameters, strict=bool(tool.strict)) for tool in body.tools or ()
    ]
    check_tools(tools)
    return tools


def _tool_choice(body: ResponsesRequest, tools: list[Tool]) -> ToolChoice:
    match body.tool_choice:
        case None:
            return ToolChoice()
        case NamedFunction(name=name):
            return ToolChoice("required", allowed_names((name,), tools))
        case AllowedTools(mode=mode, tools=allowed):
            return ToolChoice(mode, allowed_names([tool.name for tool in allowed], tools))
        case "required":
            return required_choice(tools)
        case mode:
            return ToolChoice(mode)


def _grammar(body: ResponsesRequest) -> Grammar | None:
    wanted = _format_grammar(body.text.format) if body.text is not None and body.text.format is not None else None
    given = grammar_of(body.grammar)
    if wanted is not None and given is not None:
        raise InvalidRequestError("grammar", "text.format says already what the answer looks like; give one of them")
    return given or wanted


def _format_grammar(wanted: TextFormat) -> Grammar | None:
    match wanted.type:
        case "text":
            return None
        case "json_object":
            return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT)
        case "json_schema":
            if wanted.schema_ is None:
                raise InvalidRequestError("text.format.schema", "is required for the type json_schema")
            return json_schema_grammar(wanted.schema_, "text.format.schema")


def _template_kwargs(body: ResponsesRequest) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    if body.text is not None and body.text.verbosity is not None:
        given["verbosity"] = body.text.verbosity
    if body.reasoning is not None and body.reasoning.effort is not None:
        given["reasoning_effort"] = body.reasoning.effort
    return given


def _pins(body: ResponsesRequest, conversation: Conversation) -> list[Pin]:
    pins = list(conversation.pins)
    seconds = DAY if body.prompt_cache_retention == "24h" else 0.0
    if body.prompt_cache_options is not None and body.prompt_cache_options.ttl is not None:
        seconds = max(seconds, SECONDS[body.prompt_cache_options.ttl])
    return [*pins, Pin(len(conversation.messages), seconds)] if seconds else pins


def opening(body: ResponsesRequest, response_id: str, model: str, created_at: int) -> dict[str, Any]:
    """The response before anything is answered: its id, and what it echoes of the request."""
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": (body.reasoning.summary or body.reasoning.generate_summary) if body.reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": _echoed_choice(body),
        "tools": [_echoed_tool(tool.model_dump(by_alias=True, exclude_none=True)) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _echoed_choice(body: ResponsesRequest) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.model_dump()


def _echoed_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"parameters": None, "strict": False, "description": None} | tool
