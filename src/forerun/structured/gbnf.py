"""llama.cpp's GBNF (grammars/README.md there), translated to llguidance's Lark.

GBNF has no lexer: any split of the text will do. llguidance's lexer takes the longest match of a terminal, so a
terminal stands only for a single character or a literal; or for all of it, where no rule refers to itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from forerun.errors import InvalidRequestError
from forerun.structured.lark import token_reference
from forerun.structured.limits import MAX_ALTERNATIVES, MAX_DEPTH, MAX_RULES, check_count
from forerun.structured.tokens import TokenTable

_MAX_CODE = 0x10FFFF
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\n\r]*)*")
_SPACE_AND_LINES = re.compile(r"(?:\s|#[^\n\r]*)*")
_DEFINES = re.compile(r"\s*::=")
_TOKEN = re.compile(r"<[^<>\s]+>")
_REPEATS = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_MAX_REPEATS = 100_000


@dataclass(frozen=True, slots=True)
class _Terminal:
    """A literal or a character class, as Lark."""

    lark: str


@dataclass(frozen=True, slots=True)
class _Reference:
    rule: str


@dataclass(frozen=True, slots=True)
class _Token:
    """One token of the vocabulary, as it is written between angle brackets."""

    name: str


@dataclass(frozen=True, slots=True)
class _Repeat:
    item: _Item
    suffix: str
    """What Lark writes behind it."""


@dataclass(slots=True)
class _Choice:
    """Alternatives, each a row of items."""

    alternatives: list[list[_Item]] = field(default_factory=lambda: [[]])


_Item: TypeAlias = "_Terminal | _Reference | _Token | _Repeat | _Choice"
_EMPTY = _Terminal('""')


class _Reader:
    """Reads a grammar from the start. Groups are kept on a stack, so that nesting costs no recursion."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.alternatives = 0

    def rules(self) -> dict[str, _Choice]:
        rules: dict[str, _Choice] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._name()
            if name in rules:
                raise self._error(f"rule {name!r} is defined twice")
            self._expect("::=")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._choice()
            check_count(len(rules), MAX_RULES, "rules")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _choice(self) -> _Choice:
        """What a rule stands for, up to the end of its line."""
        open_groups = [_Choice()]
        while True:
            nested = len(open_groups) > 1
            self._skip(_SPACE_AND_LINES if nested else _SPACE)
            sign = self._text[self._at : self._at + 1]
            if sign == "|":
                self._at += 1
                self.alternatives += 1
                self._skip(_SPACE_AND_LINES)
                open_groups[-1].alternatives.append([])
            elif sign == "(":
                self._at += 1
                open_groups.append(_Choice())
                if len(open_groups) > MAX_DEPTH:
                    raise self._error(f"groups nest more than {MAX_DEPTH} deep")
            elif sign == ")" and nested:
                self._at += 1
                group = open_groups.pop()
                open_groups[-1].alternatives[-1].append(self._repeated(group))
            elif sign and sign not in "\r\n)":
                open_groups[-1].alternatives[-1].append(self._repeated(self._item(sign)))
            else:
                return self._closed(open_groups, sign)

    def _closed(self, open_groups: Sequence[_Choice], sign: str) -> _Choice:
        if len(open_groups) > 1:
            raise self._error("a group is not closed")
        if sign == ")":
            raise self._error("a group is closed that was not opened")
        return open_groups[0]

    def _item(self, sign: str) -> _Item:
        if sign == '"':
            return self._literal()
        if sign == "[":
            return self._character_class()
        if sign == ".":
            self._at += 1
            return _Terminal("/(?s:.)/")
        if sign == "<":
            token = _TOKEN.match(self._text, self._at)
            if token is None:
                raise self._error("a token is written <name>")
            self._at = token.end()
            return _Token(token.group()[1:-1])
        return _Reference(self._name())

    def _repeated(self, item: _Item) -> _Item:
        while True:
            self._skip(_SPACE)
            sign = self._text[self._at : self._at + 1]
            if sign and sign in "*+?":
                self._at += 1
                item = _Repeat(item, sign)
            elif sign == "{":
                item = _Repeat(item, self._bounds())
            else:
                return item

    def _bounds(self) -> str:
        found = _REPEATS.match(self._text, self._at)
        if found is None:
            raise self._error("repetitions are written {m}, {m,} or {m,n}")
        least, comma, most = found.groups()
        if max(len(least), len(most or "")) > 7 or max(int(least), int(most or 0)) > _MAX_REPEATS:
            raise self._error(f"something repeats more than {_MAX_REPEATS} times")
        if most and int(most) < int(least):
            raise self._error(f"{{{least},{most}}} ends before it begins")
        self._at = found.end()
        return f"{{{int(least)},{int(most) if most else ''}}}" if comma else f"{{{int(least)}}}"

    def _literal(self) -> _Item:
        self._at += 1
        characters: list[str] = []
        while self._text[self._at : self._at + 1] != '"':
            characters.append(self._character())
        self._at += 1
        return _Terminal(json.dumps("".join(characters), ensure_ascii=False)) if characters else _EMPTY

    def _character_class(self) -> _Item:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges: list[str] = []
        while self._text[self._at : self._at + 1] != "]":
            first = last = self._character()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character()
            if last < first:
                raise self._error(f"the range {first!r} to {last!r} is empty")
            ranges.append(f"\\x{{{ord(first):X}}}-\\x{{{ord(last):X}}}")
        self._at += 1
        if not ranges:
            if negated:
                return _Terminal("/(?s:.)/")
            raise self._error("a character class is empty")
        return _Terminal(f"/[{'^' if negated else ''}{''.join(ranges)}]/")

    def _character(self) -> str:
        sign = self._text[self._at : self._at + 1]
        if not sign or sign in "\r\n":
            raise self._error("a literal or character class is not closed")
        if sign != "\\":
            self._at += 1
            return self._checked(ord(sign))
        escaped = self._text[self._at + 1 : self._at + 2]
        digits = _HEX_DIGITS.get(escaped)
        self._at += 2
        if digits is None:
            if not escaped or escaped not in '"\\[]nrt-^':
                raise self._error(f"\\{escaped} is no escape sequence")
            return _ESCAPES.get(escaped, escaped)
        number = self._text[self._at : self._at + digits]
        if len(number) != digits or any(digit not in "0123456789abcdefABCDEF" for digit in number):
            raise self._error(f"\\{escaped} is followed by {digits} hexadecimal digits")
        self._at += digits
        return self._checked(int(number, 16))

    def _checked(self, code: int) -> str:
        if code > _MAX_CODE or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"U+{code:04X} is no character")
        return chr(code)

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._error("a rule's name is expected")
        self._at = found.end()
        return found.group()

    def _expect(self, sign: str) -> None:
        self._skip(_SPACE)
        if not self._text.startswith(sign, self._at):
            raise self._error(f"{sign} is expected")
        self._at += len(sign)

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _error(self, message: str) -> InvalidRequestError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        return InvalidRequestError("grammar", f"GBNF, line {line}, column {column}: {message}")


def gbnf_to_lark(text: str, table: TokenTable) -> str:
    """The same language in Lark, as far as UTF-8 text goes. Raises InvalidRequestError."""
    reader = _Reader(text)
    rules = reader.rules()
    if "root" not in rules:
        raise InvalidRequestError("grammar", "GBNF: there is no rule named root")
    references = {name: _references(choice) for name, choice in rules.items()}
    for name, (named, _) in references.items():
        unknown = sorted(named - rules.keys())
        if unknown:
            raise InvalidRequestError("grammar", f"GBNF: rule {name!r} refers to {unknown[0]!r}, which is not defined")
    reached = _reached({name: named for name, (named, _) in references.items()})
    is_regular = not reached.has_cycle and not any(references[name][1] for name in reached.names)
    if not is_regular:
        check_count(reader.alternatives, MAX_ALTERNATIVES, "alternatives")
    names = {name: f"{'R' if is_regular else 'r'}{index}" for index, name in enumerate(reached.names)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {_written(rules[name], names, table)}" for name in reached.names]
    return "\n".join(lines)


def _references(choice: _Choice) -> tuple[set[str], bool]:
    """Which rules an item refers to, and whether it names tokens."""
    named: set[str] = set()
    has_tokens = False
    waiting: list[_Item] = [choice]
    while waiting:
        item = waiting.pop()
        if isinstance(item, _Choice):
            waiting += [one for row in item.alternatives for one in row]
        elif isinstance(item, _Repeat):
            waiting.append(item.item)
        elif isinstance(item, _Reference):
            named.add(item.rule)
        has_tokens = has_tokens or isinstance(item, _Token)
    return named, has_tokens


@dataclass(frozen=True, slots=True)
class _Reached:
    """Rules that root leads to, and whether one of them leads to itself."""

    names: tuple[str, ...]
    has_cycle: bool


def _reached(references: dict[str, set[str]]) -> _Reached:
    done: dict[str, None] = {}
    on_the_way: set[str] = set()
    has_cycle = False
    waiting: list[tuple[str, bool]] = [("root", False)]
    while waiting:
        name, is_left = waiting.pop()
        if is_left:
            on_the_way.discard(name)
            done[name] = None
        elif name in on_the_way:
            has_cycle = True
        elif name not in done:
            on_the_way.add(name)
            waiting.append((name, True))
            waiting += [(other, False) for other in sorted(references[name])]
    return _Reached(tuple(done), has_cycle)


def _written(item: _Item, names: dict[str, str], table: TokenTable) -> str:
    """An item as Lark. Recursive: the reader has bounded how deep groups nest."""
    match item:
        case _Terminal(lark):
            return lark
        case _Reference(rule):
            return names[rule]
        case _Token(name):
            return token_reference(name, table)
        case _Repeat(inner, suffix):
            return f"({_written(inner, names, table)}){suffix}"
        case _Choice(alternatives):
            rows = [" ".join(_written(one, names, table) for one in row) or '""' for row in alternatives]
            return f"({' | '.join(rows)})"
