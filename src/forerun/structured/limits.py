"""What a grammar may be at most, looked at in plain Python, in one pass and without recursion.

llguidance bounds most things itself, cleanly. What it does not bound was measured (1.9): 2000 rules that refer to one
another exhaust a stack of 8 MB and end the process; a few hundred alternatives that begin alike take seconds a token,
which is found out only after the time was spent.
"""

from __future__ import annotations

import re

from llguidance import LLParserLimits

from forerun.errors import InvalidRequestError

MAX_TEXT = 256 * 1024
"""Characters of a grammar."""
MAX_DEPTH = 100
"""Brackets in brackets. llguidance refuses what is deeper than about 120 in JSON and 250 in a pattern."""
MAX_RULES = 1000
MAX_ALTERNATIVES = 256
"""Alternatives that a parser may have to follow side by side; those inside of a terminal cost next to nothing."""
MAX_MARKER = 200
"""Characters of `Grammar.after`."""

PARSER_LIMITS = LLParserLimits(
    max_items_in_row=1000,
    step_lexer_fuel=200_000,  # about 15 ms
    step_max_items=50_000,
    max_lexer_states=50_000,  # about 100 MB for one request
    verbose_errors=False,
)
"""For compiling, and for every token of an answer."""


def check_size(text: str, what: str) -> None:
    """Raise InvalidRequestError for text that is empty or too long."""
    if not text.strip():
        raise InvalidRequestError("grammar", f"the {what} is empty")
    if len(text) > MAX_TEXT:
        raise InvalidRequestError("grammar", f"the {what} has {len(text)} characters; at most {MAX_TEXT} are taken")


def check_depth(depth: int, what: str) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequestError("grammar", f"the {what} nests brackets more than {MAX_DEPTH} deep")


def check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise InvalidRequestError("grammar", f"has {count} {what}; at most {most} are taken")


def json_depth(text: str) -> int:
    """How deep brackets nest in JSON text, strings left out. The text need not be valid."""
    return _depth(_JSON_PARTS.findall(text))


_JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def regex_depth(pattern: str) -> int:
    """How deep groups and classes nest in a pattern. It need not be valid."""
    return _depth(_REGEX_PARTS.findall(pattern))


_REGEX_PARTS = re.compile(r"\\.|[\[\]()]", re.DOTALL)


def _depth(parts: list[str]) -> int:
    depth = deepest = 0
    for part in parts:
        if part in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif part in ")]}":
            depth = max(0, depth - 1)
    return deepest
