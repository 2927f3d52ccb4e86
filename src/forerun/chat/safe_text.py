"""Keeps what callers write from being read as control tokens.

A template mixes its own control tokens with the callers' words, and a tokenizer cannot tell the two apart. So what
spells a control token in those words is rendered as a placeholder, one private-use character that occurs nowhere else,
and put back afterwards as text that is only text. Where nothing is forged, nearly always, nothing of this happens.

The tags of reasoning are left alone: templates look for them in earlier answers, and they end nobody's turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from forerun.core.prompt_text import PromptText
from forerun.errors import InvalidRequestError

_PLACEHOLDERS: Final = range(0x10_0000, 0x10_FFFE)
"""Supplementary private use area B."""
_REASONING_TAGS: Final = {"<think>", "</think>", "[THINK]", "[/THINK]"}
_MAX_DEPTH: Final = 200  # lists in lists, where something is forged


class ForgeryGuard:
    """Knows how a vocabulary spells its control tokens. Immutable."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._pattern = _any_of(sorted(set(spellings) - _REASONING_TAGS - {""}))

    def forged(self, values: object) -> frozenset[str]:
        """The control tokens that are spelled somewhere in these values."""
        if self._pattern is None:
            return frozenset()
        return frozenset(found for text in _texts(values) for found in self._pattern.findall(text))

    def render(self, render: Callable[[Any], str], values: Any, source: str = "") -> PromptText:
        """What `render` makes of the values, with forged control tokens as plain text.

        `source`: the template, whose characters are no placeholders either.
        """
        forged = self.forged(values)
        if not forged or self._pattern is None:
            return PromptText(render(values))
        placeholders = dict(zip(sorted(forged), unused_characters(values, source), strict=False))
        pattern = self._pattern
        hidden = _mapped(values, lambda text: pattern.sub(lambda match: placeholders[match[0]], text))
        return _revealed(render(hidden), {char: text for text, char in placeholders.items()})


def unused_characters(values: object, source: str) -> Iterator[str]:
    """Characters that occur neither in the values nor in a template, and that no text means anything by."""
    used = set(source).union(*_texts(values))
    return (chr(code) for code in _PLACEHOLDERS if chr(code) not in used)


def _revealed(text: str, spellings: Mapping[str, str]) -> PromptText:
    parts: list[str] = []
    plain: list[tuple[int, int]] = []
    size = 0
    for part in re.split(f"([{''.join(spellings)}])", text):
        shown = spellings.get(part, part)
        if part in spellings:
            plain.append((size, size + len(shown)))
        parts.append(shown)
        size += len(shown)
    return PromptText("".join(parts), tuple(plain))


def _texts(values: object) -> Iterator[str]:
    """All texts in nested lists and mappings, keys included."""
    waiting: list[object] = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value


def _mapped(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise InvalidRequestError("messages", f"what is given to the chat template is nested {_MAX_DEPTH} deep or more")
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change, depth + 1): _mapped(one, change, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(one, change, depth + 1) for one in value]
    return value


def _any_of(texts: list[str]) -> re.Pattern[str] | None:
    """A pattern of all texts, the longest one first where one begins another; None of none.

    Built as a tree of shared beginnings: vocabularies have hundreds of control tokens that differ in a number.
    """
    if not texts:
        return None
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    try:
        return re.compile(_pattern(tree))
    except RecursionError:  # no vocabulary is like that
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _pattern(tree: dict[str, Any]) -> str:
    """Patterns of long chains are not nested: a spelling may have hundreds of characters."""
    prefix = ""
    while len(tree) == 1 and "" not in tree:
        [(char, tree)] = tree.items()
        prefix += re.escape(char)
    branches = [re.escape(char) + _pattern(node) for char, node in tree.items() if char]
    if not branches:
        return prefix
    return f"{prefix}(?:{'|'.join(branches)}){'?' if '' in tree else ''}"
