"""Which family's way of writing a model was taught: told by what its chat template writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from forerun.chat.families import bare_json, deepseek, gemma, granite, harmony, hermes, llama, mistral, xml_grammar
from forerun.chat.families.family import TaggedFamily
from forerun.chat.families.harmony import HarmonyFormat
from forerun.chat.formats import ChatFormat
from forerun.errors import InvalidConfigError

AUTO: Final = "auto"
"""By the markers in the template."""

_HERMES_MARKERS: Final = (hermes.CALL, hermes.CALL_END)
HERMES: Final = TaggedFamily("hermes", hermes.read, hermes.SYNTAX, _HERMES_MARKERS)
QWEN_CODER: Final = replace(HERMES, name="qwen-coder", syntax=xml_grammar.SYNTAX)
LLAMA: Final = TaggedFamily("llama3", llama.read, llama.SYNTAX, (llama.PYTHON_TAG,))
MISTRAL: Final = TaggedFamily(
    "mistral",
    mistral.read,
    mistral.LIST_SYNTAX,
    (mistral.CALLS, mistral.ARGUMENTS, mistral.CALL_ID),
    mistral.THINK,
)
MISTRAL_NAMED: Final = replace(MISTRAL, name="mistral-args", syntax=mistral.NAMED_SYNTAX)
DEEPSEEK: Final = TaggedFamily(
    "deepseek",
    deepseek.read,
    deepseek.FENCED_SYNTAX,
    (deepseek.CALLS, deepseek.CALLS_END, deepseek.CALL, deepseek.CALL_END, deepseek.SEPARATOR),
)
DEEPSEEK_PLAIN: Final = replace(DEEPSEEK, name="deepseek-v3.1", syntax=deepseek.PLAIN_SYNTAX)
GRANITE: Final = TaggedFamily("granite", granite.read, granite.SYNTAX, (granite.GRANITE_CALL, *_HERMES_MARKERS))
GEMMA: Final = TaggedFamily("gemma", gemma.read, bare_json.SYNTAX)
HARMONY: Final = HarmonyFormat()
GENERIC: Final = TaggedFamily("generic", bare_json.read, bare_json.SYNTAX, _HERMES_MARKERS)

_FAMILIES: Final = (
    *(HERMES, QWEN_CODER, LLAMA, MISTRAL, MISTRAL_NAMED, DEEPSEEK, DEEPSEEK_PLAIN),
    *(GRANITE, GEMMA, HARMONY, GENERIC),
)
FORMAT_NAMES: Final = tuple(family.name for family in _FAMILIES)
"""What `--chat-format` takes besides AUTO."""

# Looked for in this order: what only one family has comes before what several do. All texts of a row must be there.
_SIGNS: Final[tuple[tuple[tuple[str, ...], TaggedFamily | HarmonyFormat], ...]] = (
    ((harmony.CHANNEL,), HARMONY),
    ((deepseek.CALL, "```json"), DEEPSEEK),
    ((deepseek.CALL,), DEEPSEEK_PLAIN),
    ((mistral.CALLS, mistral.ARGUMENTS), MISTRAL_NAMED),
    ((mistral.CALLS,), MISTRAL),
    ((granite.GRANITE_CALL,), GRANITE),
    (("<function=",), QWEN_CODER),
    ((hermes.CALL,), HERMES),
    ((llama.PYTHON_TAG,), LLAMA),
    (("<|eom_id|>",), LLAMA),
    (("<|start_header_id|>",), LLAMA),
    (("<start_of_turn>",), GEMMA),
    (("<｜Assistant｜>",), DEEPSEEK),
    (("[INST]",), MISTRAL),
)


def choose_format(template: str | None, *, name: str = AUTO, controls: Mapping[str, int] | None = None) -> ChatFormat:
    """The format of this name, or the one whose signs a template holds; generic JSON where there are none.

    `controls`: the vocabulary's control tokens, spelling to id. Raises InvalidConfigError("chat_format").
    """
    by_name = {family.name: family for family in _FAMILIES}
    if name == AUTO:
        family = next((family for signs, family in _SIGNS if all(sign in (template or "") for sign in signs)), GENERIC)
    elif name in by_name:
        family = by_name[name]
    else:
        raise InvalidConfigError("chat_format", f"is {name!r}; there are {AUTO}, {', '.join(FORMAT_NAMES)}")
    return family.with_controls(controls or {})
