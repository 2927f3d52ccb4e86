"""Which tools a request lets the model call: the same checks for every API."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.chat.formats import Tool
from forerun.errors import InvalidRequestError
from forerun.server.jobs import ToolChoice


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise InvalidRequestError where two tools have one name."""
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidRequestError("tools", f"there are two tools named {tool.name!r}")
        seen.add(tool.name)


def required_choice(tools: Sequence[Tool]) -> ToolChoice:
    """Any tool, but one. Raises InvalidRequestError where there is none."""
    if not tools:
        raise InvalidRequestError("tool_choice", "requires a call, but there are no tools to call")
    return ToolChoice("required")


def allowed_names(wanted: Sequence[str], tools: Sequence[Tool]) -> tuple[str, ...]:
    """Names of tools that may be called. Raises InvalidRequestError for none, and for one that is no tool."""
    if not wanted:
        raise InvalidRequestError("tool_choice", "allows no tool; send 'none' for that")
    names = {tool.name for tool in tools}
    if missing := next((name for name in wanted if name not in names), None):
        raise InvalidRequestError("tool_choice", f"names {missing!r}, which is not among the tools")
    return tuple(wanted)
