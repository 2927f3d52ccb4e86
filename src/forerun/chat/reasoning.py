"""How much a model is to reason, in the names that templates have for it; and whether a prompt has opened reasoning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from forerun.chat.formats import ChatFormat
from forerun.chat.templates import ChatTemplate
from forerun.errors import InvalidRequestError

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""OpenAI's and Anthropic's, least first."""
_THREE_LEVELS: Final = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_NAMES: Final[Mapping[str, Callable[[str], Any]]] = {
    "reasoning_effort": lambda effort: _THREE_LEVELS.get(effort, effort),  # gpt-oss: low, medium, high
    "enable_thinking": lambda effort: effort != "none",  # Qwen 3, GLM, SmolLM 3
    "thinking": lambda effort: effort != "none",  # DeepSeek V3.1, Granite 3
}
_THOUGHTS: Final = re.compile(r"think|reason|analysis", re.IGNORECASE)
"""What templates of models that reason speak of."""


def reasoning_kwargs(effort: str, template: ChatTemplate) -> dict[str, Any]:
    """What an effort is called in a template. Raises InvalidRequestError("reasoning_effort") where it has no name; none
    needs none where the template knows nothing of reasoning."""
    if effort not in EFFORTS:
        raise InvalidRequestError("reasoning_effort", f"is one of {', '.join(EFFORTS)}, got {effort!r}")
    known = template.names
    found = {name: value(effort) for name, value in _NAMES.items() if name in known}
    if not found and not (effort == "none" and not _THOUGHTS.search(template.source)):
        raise InvalidRequestError("reasoning_effort", "the model's chat template knows no such setting; leave it out")
    return found


def opens_reasoning(prompt: str, chat_format: ChatFormat) -> bool:
    """Whether a prompt ends within reasoning, which the answer goes on with."""
    start = chat_format.reasoning_start
    return bool(start) and prompt.rstrip().endswith(start)
