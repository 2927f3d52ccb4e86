"""Grammars as the command line gives them: a file, or the text itself."""

from __future__ import annotations

from pathlib import Path

from forerun.core.grammar import Grammar, GrammarKind
from forerun.errors import InvalidRequestError


def wanted_grammar(json_schema: str | None, regex: str | None, grammar: str | None) -> Grammar | None:
    """The one that was given, if any. Raises InvalidRequestError."""
    given = [name for name, value in (("json_schema", json_schema), ("regex", regex), ("grammar", grammar)) if value]
    if len(given) > 1:
        raise InvalidRequestError(given[0], f"and {given[1]} both say what the answer looks like; give one of them")
    if json_schema is not None:
        inline = json_schema.lstrip().startswith("{")
        return Grammar(GrammarKind.JSON_SCHEMA, json_schema if inline else _read("json_schema", json_schema))
    if regex is not None:
        return Grammar(GrammarKind.REGEX, regex)
    if grammar is None:
        return None
    text = _read("grammar", grammar)
    return Grammar(_kind(grammar, text), text)


def _kind(name: str, text: str) -> GrammarKind:
    """By the file's name, else by the sign that only GBNF defines rules with."""
    suffix = Path(name).suffix.lower()
    if suffix in (".lark", ".gbnf"):
        return GrammarKind(suffix[1:])
    return GrammarKind.GBNF if "::=" in text else GrammarKind.LARK


def _read(field: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(field, f"{path} cannot be read: {error}") from None
