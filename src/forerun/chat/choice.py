"""Which family's way of writing a model was taught: told by what its chat template writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forerun.chat.families import bare_json, hermes, llama
from forerun.chat.families.family import TaggedFamily
from forerun.chat.formats import ChatFormat
from forerun.errors import InvalidConfigError

AUTO: Final = "auto"
"""By the markers in the template."""

HERMES: Final = TaggedFamily("hermes", hermes.read, call_markers=(hermes.CALL, hermes.CALL_END))
LLAMA: Final = TaggedFamily("llama3", llama.read, call_markers=(llama.PYTHON_TAG,))
GENERIC: Final = TaggedFamily("generic", bare_json.read, call_markers=(hermes.CALL, hermes.CALL_END))

_FAMILIES: Final = (HERMES, LLAMA, GENERIC)
FORMAT_NAMES: Final = tuple(family.name for family in _FAMILIES)
"""What `--chat-format` takes besides AUTO."""

# Looked for in this order: what only one family has comes before what several do.
_SIGNS: Final[tuple[tuple[str, TaggedFamily], ...]] = (
    ("<tool_call>", HERMES),
    ("<|python_tag|>", LLAMA),
    ("<|eom_id|>", LLAMA),
    ("<|start_header_id|>", LLAMA),
)


def choose_format(template: str | None, *, name: str = AUTO, controls: Mapping[str, int] | None = None) -> ChatFormat:
    """The format of this name, or the one whose signs a template holds; generic JSON where there are none.

    `controls`: the vocabulary's control tokens, spelling to id. Raises InvalidConfigError("chat_format").
    """
    by_name = {family.name: family for family in _FAMILIES}
    if name == AUTO:
        family = next((family for sign, family in _SIGNS if sign in (template or "")), GENERIC)
    elif name in by_name:
        family = by_name[name]
    else:
        raise InvalidConfigError("chat_format", f"is {name!r}; there are {AUTO}, {', '.join(FORMAT_NAMES)}")
    return family.with_controls(controls or {})
