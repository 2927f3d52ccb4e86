"""Which family's way of writing a model was taught: told by what its chat template writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from forerun.chat.families import bare_json, deepseek, gemma, granite, harmony, hermes, llama, mistral
from forerun.chat.families.family import TaggedFamily
from forerun.chat.families.harmony import HarmonyFormat
from forerun.chat.formats import ChatFormat
from forerun.errors import InvalidConfigError

AUTO: Final = "auto"
"""By the markers in the template."""

HERMES: Final = TaggedFamily("hermes", hermes.read, call_markers=(hermes.CALL, hermes.CALL_END))
QWEN_CODER: Final = replace(HERMES, name="qwen-coder")
LLAMA: Final = TaggedFamily("llama3", llama.read, call_markers=(llama.PYTHON_TAG,))
MISTRAL: Final = TaggedFamily(
    "mistral", mistral.read, call_markers=(mistral.CALLS, mistral.ARGUMENTS, mistral.CALL_ID), thinking=mistral.THINK
)
DEEPSEEK: Final = TaggedFamily(
    "deepseek",
    deepseek.read,
    call_markers=(deepseek.CALLS, deepseek.CALLS_END, deepseek.CALL, deepseek.CALL_END, deepseek.SEPARATOR),
)
GRANITE: Final = TaggedFamily(
    "granite", granite.read, call_markers=(granite.GRANITE_CALL, hermes.CALL, hermes.CALL_END)
)
GEMMA: Final = TaggedFamily("gemma", gemma.read)
HARMONY: Final = HarmonyFormat()
GENERIC: Final = TaggedFamily("generic", bare_json.read, call_markers=(hermes.CALL, hermes.CALL_END))

_FAMILIES: Final = (HERMES, QWEN_CODER, LLAMA, MISTRAL, DEEPSEEK, GRANITE, GEMMA, HARMONY, GENERIC)
FORMAT_NAMES: Final = tuple(family.name for family in _FAMILIES)
"""What `--chat-format` takes besides AUTO."""

# Looked for in this order: what only one family has comes before what several do.
_SIGNS: Final[tuple[tuple[str, TaggedFamily | HarmonyFormat], ...]] = (
    (harmony.CHANNEL, HARMONY),
    (deepseek.CALL, DEEPSEEK),
    (mistral.CALLS, MISTRAL),
    (granite.GRANITE_CALL, GRANITE),
    ("<function=", QWEN_CODER),
    (hermes.CALL, HERMES),
    (llama.PYTHON_TAG, LLAMA),
    ("<|eom_id|>", LLAMA),
    ("<|start_header_id|>", LLAMA),
    ("<start_of_turn>", GEMMA),
    ("<｜Assistant｜>", DEEPSEEK),
    ("[INST]", MISTRAL),
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
