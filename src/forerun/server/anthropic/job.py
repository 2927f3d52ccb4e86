"""From a request of the Messages API to the job it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forerun.chat.formats import Tool
from forerun.core.grammar import Grammar
from forerun.core.request import SamplingParams
from forerun.errors import InvalidRequestError
from forerun.server.anthropic.conversation import conversation_of
from forerun.server.jobs import ChatJob, ToolChoice
from forerun.server.renaming import named_as
from forerun.server.tools import allowed_names, check_tools, required_choice
from forerun.server.wire.common import grammar_of, json_schema_grammar
from forerun.server.wire.messages import CountTokensRequest, MessagesRequest, ToolChoiceField, ToolDefinition

NAMES: Final = {"stop": "stop_sequences", "response_format": "output_config.format"}
"""Our names of fields, and this API's."""


def message_job(body: MessagesRequest, tenant: str) -> ChatJob:
    """Raises InvalidRequestError, naming the field."""
    budget = body.thinking.budget_tokens if body.thinking is not None else None
    if budget is not None and budget >= body.max_tokens:
        said = f"must be less than max_tokens, {body.max_tokens}; got {budget}"
        raise InvalidRequestError("thinking.budget_tokens", said)
    with named_as(NAMES):
        params = body.sampling(max_tokens=body.max_tokens, stop=body.stop_sequences)
    return ChatJob(
        params=params,
        grammar=_grammar(body),
        tenant=tenant,
        cache_prompt=body.cache_prompt is not False,
        priority=body.priority or 0,
        deadline=body.deadline,
        timeout=body.timeout,
        **_prompt(body, body.chat_template_kwargs or {}),
    )


def counted_job(body: CountTokensRequest, tenant: str) -> ChatJob:
    """What the tokens are counted of. Raises InvalidRequestError, naming the field."""
    return ChatJob(params=SamplingParams(), tenant=tenant, **_prompt(body, {}))


def _prompt(body: CountTokensRequest, template_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What of a job makes the prompt."""
    conversation = conversation_of(body)
    tools = [_tool(tool) for tool in body.tools or ()]
    check_tools(tools)
    choice = body.tool_choice
    return {
        "messages": conversation.messages,
        "tools": tools,
        "tool_choice": ToolChoice() if choice is None else _tool_choice(choice, tools),
        "parallel_tool_calls": not (choice is not None and choice.disable_parallel_tool_use),
        "template_kwargs": template_kwargs | _thinking(body),
        "pins": conversation.pins,
    }


def _tool(given: ToolDefinition) -> Tool:
    examples = [msgspec.json.encode(example).decode() for example in given.input_examples or ()]
    description = "\n".join([given.description or "", *(f"Example of its input: {example}" for example in examples)])
    return Tool(given.name, description.lstrip("\n"), given.input_schema, strict=bool(given.strict))


def _tool_choice(choice: ToolChoiceField, tools: Sequence[Tool]) -> ToolChoice:
    if (choice.name is not None) != (choice.type == "tool"):
        raise InvalidRequestError("tool_choice.name", "is for the type tool, and required there")
    match choice.type:
        case "tool":
            return ToolChoice("required", allowed_names([choice.name or ""], tools))
        case "any":
            return required_choice(tools)
        case mode:
            return ToolChoice(mode)


def _thinking(body: CountTokensRequest) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if body.thinking is not None and body.thinking.type != "adaptive":
        given["enable_thinking"] = body.thinking.type == "enabled"
    if body.output_config is not None and body.output_config.effort is not None:
        given["reasoning_effort"] = body.output_config.effort
    return given


def _grammar(body: MessagesRequest) -> Grammar | None:
    wanted = body.output_config.format if body.output_config is not None else None
    given = grammar_of(body.grammar)
    if wanted is None:
        return given
    if given is not None:
        raise InvalidRequestError("grammar", "output_config.format says already what the answer looks like")
    return json_schema_grammar(wanted.schema_, "output_config.format.schema")
