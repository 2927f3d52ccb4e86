"""llguidance's dialect of Lark as requests may write it: looked through for what is unbounded or would be ignored.

Two things are read differently from llguidance:

    <name>       the token that is written so, where the vocabulary has one as a control token, else that text
    %json {...}  a schema as `schema.py` reads it: unknown keywords are refused, whitespace is bounded
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from forerun.errors import InvalidRequestError
from forerun.structured.limits import (
    MAX_ALTERNATIVES,
    MAX_RULES,
    check_count,
    check_depth,
    regex_depth,
)
from forerun.structured.schema import embedded_schema
from forerun.structured.tokens import TokenTable

_PART = re.compile(
    r"""
      (?P<string>"(?:[^"\\\n]|\\.)*"i?)
    | (?P<comment>(?://|\#)[^\n]*)
    | (?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)
    | (?P<json>%json\b)
    | (?P<token><[^<>\s]+>)
    | (?P<define>(?<![^\n])[ \t]*[?!]?(?P<name>_*[A-Za-z][\w-]*)(?=\s*(?:\[[^\]\n]*\]|\{[^}\n]*\})?\s*(?:\.\d+\s*)?:))
    | (?P<word>[\w-]+)
    | (?P<space>\s+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBERED = re.compile(r"<\[[\d\s,^*-]+\]>")
"""Tokens by their ids, as llguidance writes it."""
_SETS = re.compile(r"\s*=")
_REFUSED_OPTIONS = frozenset({"max_tokens", "temperature", "stop"})
"""Options of rules that need tokens to be taken back, or forbid it."""


@dataclass(slots=True)
class _Counts:
    depth: int = 0
    deepest: int = 0
    rules: int = 0
    alternatives: int = 0
    in_terminal: bool = False

    def take(self, sign: str) -> None:
        if sign in "([{":
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)
        elif sign in ")]}":
            self.depth = max(0, self.depth - 1)
        elif sign == "|" and not self.in_terminal:
            self.alternatives += 1

    def define(self, name: str) -> None:
        self.rules += 1
        self.in_terminal = name.lstrip("_")[:1].isupper()


def checked_lark(text: str, table: TokenTable) -> str:
    """The grammar as llguidance is to read it. Raises InvalidRequestError."""
    return "".join(_read(text, table))


def _read(text: str, table: TokenTable) -> Iterator[str]:
    counts = _Counts()
    check_depth(_bracket_depth(text), "grammar")
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        assert part is not None
        at = part.end()
        kind, found = part.lastgroup, part.group()
        if kind == "json":
            schema, at = _embedded(text, at)
            yield f"{found} {schema}"
            continue
        if kind == "token":
            found = token_reference(found[1:-1], table)
        elif kind == "regex":
            check_depth(regex_depth(found), "pattern")
        elif kind == "define":
            counts.define(part["name"])
        elif kind == "word" and found in _REFUSED_OPTIONS and _SETS.match(text, at):
            raise InvalidRequestError("grammar", f"the rule option {found!r} is not supported; leave it out")
        elif kind == "sign":
            counts.take(found)
        yield found
    check_count(counts.rules, MAX_RULES, "rules")
    check_count(counts.alternatives, MAX_ALTERNATIVES, "alternatives outside of terminals")


def _bracket_depth(text: str) -> int:
    """How deep brackets nest, what is quoted left out."""
    counts = _Counts()
    for part in _PART.finditer(text):
        if part.lastgroup == "sign":
            counts.take(part.group())
    return counts.deepest


def _embedded(text: str, at: int) -> tuple[str, int]:
    """The schema behind %json, and where it ends."""
    while at < len(text) and text[at].isspace():
        at += 1
    try:
        schema, end = json.JSONDecoder().raw_decode(text, at)
    except ValueError as error:
        raise InvalidRequestError("grammar", f"what follows %json is not valid JSON: {error}") from None
    return json.dumps(embedded_schema(schema)), end


def token_reference(name: str, table: TokenTable) -> str:
    """Lark for what is written `name`: one token where the vocabulary has it as a control token, else text."""
    if _NUMBERED.fullmatch(f"<{name}>"):
        return f"<{name}>"
    for written in (f"<{name}>", name):
        token = table.control_ids.get(written.encode())
        if token is not None:
            return f"<[{token}]>"
    return json.dumps(f"<{name}>", ensure_ascii=False)
