"""JSON Schema as llguidance takes it: what it cannot enforce is refused, never ignored.

llguidance itself refuses keywords of the specification that it does not implement, but takes unknown ones for
annotations, as the specification says. A misspelt keyword would then be silently without effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from llguidance import LLMatcher

from forerun.errors import InvalidRequestError
from forerun.structured.limits import MAX_ALTERNATIVES, MAX_RULES, check_count, check_depth, json_depth

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_ONE = frozenset({"items", "additionalProperties"})
"""Keywords whose value is a schema."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Whose value maps names to schemas."""
_SEVERAL = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Whose value is a list of schemas."""
_ENFORCED = frozenset(
    {"type", "enum", "const", "$ref", "required", "minProperties", "maxProperties", "minItems", "maxItems"}
    | {"minLength", "maxLength", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_SAYS_NOTHING = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$schema", "$id", "discriminator"}
)
"""Annotations. A discriminator (OpenAPI) repeats what the branches of a oneOf say."""
_KNOWN = _ONE | _NAMED | _SEVERAL | _ENFORCED | _SAYS_NOTHING

_OPTIONS_KEY = "x-guidance"
_OPTIONS: JsonCompileOptions = {
    "lenient": False,
    "coerce_one_of": False,
    # JSON on one line: where line breaks may come, a small model may go on with them for ever.
    "whitespace_flexible": False,
    "item_separator": ",[ ]?",
    "key_separator": ":[ ]?",
}

_Place: TypeAlias = tuple[str, Any]
"""A schema and where it stands ("#/properties/a")."""


def parsed_schema(text: str) -> dict[str, Any]:
    """The schema, every keyword of it known. Raises InvalidRequestError."""
    check_depth(json_depth(text), "JSON schema")
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError("grammar", f"the JSON schema is not valid JSON: {error}") from None
    return check_schema(schema)


def check_schema(schema: object, *, is_lenient: bool = False) -> dict[str, Any]:
    """The schema, every keyword of it known unless it `is_lenient`; it nests no deeper than JSON that was let in.
    Raises InvalidRequestError."""
    if not isinstance(schema, dict):
        raise InvalidRequestError("grammar", f"a JSON schema is an object, got {_shown(schema)}")
    alternatives, references = 0, set[str]()
    for place, one in _schemas(schema):
        if isinstance(one, bool):
            continue
        _checked(place, one, Mapping)
        if not is_lenient:
            _check_keywords(place, one)
        branches = [_checked(f"{place}/{name}", one[name], list) for name in ("anyOf", "oneOf") if name in one]
        alternatives += sum(map(len, branches))
        references.add(str(one.get("$ref", "")))
    check_count(alternatives, MAX_ALTERNATIVES, "alternatives (anyOf, oneOf)")
    check_count(len(references), MAX_RULES, "different $refs")
    return schema


def embedded_schema(schema: object) -> dict[str, Any]:
    """A schema with llguidance's options in it, for a grammar that embeds it. Raises InvalidRequestError.

    Of the options it may bring {"lenient": true}: what is not understood of it is then not enforced. Tools that are not
    strict are written so.
    """
    given = schema.get(_OPTIONS_KEY) if isinstance(schema, Mapping) else None
    if given is None:
        return {**check_schema(schema), _OPTIONS_KEY: _OPTIONS}
    if given != {"lenient": True}:
        raise InvalidRequestError("grammar", f'JSON schema: {_OPTIONS_KEY} may only be {{"lenient": true}}')
    return {**check_schema(schema, is_lenient=True), _OPTIONS_KEY: {**_OPTIONS, "lenient": True}}


def schema_grammar(schema: Mapping[str, Any]) -> dict[str, Any]:
    """llguidance's grammar of a schema: one entry of its list. Raises InvalidRequestError."""
    try:
        listed: dict[str, Any] = json.loads(LLMatcher.grammar_from_json_schema(dict(schema), overrides=_OPTIONS))
    except ValueError as error:  # numbers beyond what it can read
        raise InvalidRequestError("grammar", f"the JSON schema cannot be read: {error}") from None
    grammar: dict[str, Any] = listed["grammars"][0]
    return grammar


def _schemas(schema: Mapping[str, Any]) -> Iterator[_Place]:
    """All schemas in a schema, itself included."""
    waiting: list[_Place] = [("#", schema)]
    while waiting:
        place, one = waiting.pop()
        yield place, one
        if isinstance(one, Mapping):
            waiting += _parts(place, one)


def _parts(place: str, schema: Mapping[str, Any]) -> Iterator[_Place]:
    for name, value in schema.items():
        at = f"{place}/{name}"
        if name in _ONE:
            yield at, value
        elif name in _NAMED:
            yield from [(f"{at}/{key}", one) for key, one in _checked(at, value, Mapping).items()]
        elif name in _SEVERAL:
            yield from [(f"{at}/{index}", one) for index, one in enumerate(_checked(at, value, list))]


def _checked(place: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise InvalidRequestError("grammar", f"JSON schema: {place} must be {wanted}, got {_shown(value)}")
    return value


def _check_keywords(place: str, schema: Mapping[str, Any]) -> None:
    unknown = [name for name in schema if name not in _KNOWN]
    if unknown:
        raise InvalidRequestError(
            "grammar", f"JSON schema: the keyword {unknown[0]!r} at {place} is not supported; leave it out"
        )
    if "discriminator" in schema and not schema.keys() & {"oneOf", "anyOf"}:
        raise InvalidRequestError("grammar", f"JSON schema: the discriminator at {place} has no oneOf to speak of")
    least, required = schema.get("minProperties", 0), schema.get("required", ())
    if isinstance(least, int | float) and least > max(1, len(required) if isinstance(required, Sequence) else 0):
        # Free keys may come twice, and then count once.
        raise InvalidRequestError(
            "grammar", f"JSON schema: minProperties {least} at {place} is not supported beyond 1, or what is required"
        )


def _shown(value: Any) -> str:
    return repr(value)[:40]
