"""Grammars of tool calls in llguidance's dialect of Lark: the words around a call are literal, arguments fit a schema.

Where calls are required, an answer is a section of calls and nothing else. Else text is free until the opening of one,
and what follows it is enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from forerun.chat.formats import Tool
from forerun.core.grammar import Grammar, GrammarKind
from forerun.errors import InvalidRequestError

Controls: TypeAlias = Mapping[str, int]
_ANY_OBJECT: Final = {"type": "object"}
_TEXT: Final = r"TEXT: /(.|\n)*/"
_PROSE: Final = r"PROSE: /\s*[^\s{\[`](.|\n)*/"
"""Text that a reader of bare JSON does not take for a call."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How calls are written: opening, a call, more of them with `between` before each, closing.

    All are rows of texts; those that are control tokens are matched as such. An `opening` of nothing means that an
    answer is either calls or prose.
    """

    opening: tuple[str, ...]
    write_call: Callable[[Tool, Controls], str]
    """A call as a Lark expression."""
    between: tuple[str, ...]
    closing: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    """Before all calls where `opening` is empty."""
    rules: tuple[str, ...] = ()
    """Further ones, that calls refer to."""

    def grammar(self, tools: Sequence[Tool], controls: Controls, *, parallel: bool, required: bool) -> Grammar | None:
        """What `ChatFormat.call_grammar` returns. Without `required` there is something to enforce where a tool is
        strict, or only one call is allowed."""
        if not tools or not (required or not parallel or any(tool.strict for tool in tools)):
            return None
        calls = [f"call_{index}: {self.write_call(tool, controls)}" for index, tool in enumerate(tools)]
        call = " | ".join(f"call_{index}" for index in range(len(tools)))
        more = f"({literals(self.between, controls)} call)*" if parallel else ""
        section = f"section: {literals(self.prefix, controls)} call {more} {literals(self.closing, controls)}"
        start = self._start(controls, parallel=parallel, required=required)
        return Grammar(
            GrammarKind.LARK, "\n".join(["%llguidance {}", *start, section, f"call: {call}", *calls, *self.rules])
        )

    def grammar_or_answer(
        self, tools: Sequence[Tool], controls: Controls, answer: Grammar, *, parallel: bool
    ) -> Grammar | None:
        """What `ChatFormat.call_or_answer_grammar` returns: of answers those that fit a schema, where an opening tells
        calls from them. Raises InvalidRequestError for a schema that is none."""
        calls = self.grammar(tools, controls, parallel=parallel, required=True)
        if calls is None or not self.opening or answer.kind is not GrammarKind.JSON_SCHEMA:
            return None
        either = calls.text.replace("\nstart: ", "\nstart: calls | answer\ncalls: ", 1)
        return Grammar(GrammarKind.LARK, f"{either}\nanswer: {schema(_schema_of(answer), is_strict=True)}")

    def _start(self, controls: Controls, *, parallel: bool, required: bool) -> list[str]:
        if required:
            return [f"start: {literals(self.opening, controls)} section"]
        if not self.opening:
            return ["start: section | PROSE | NOTHING", _PROSE, 'NOTHING: ""']
        first, *others = self.opening
        option = "" if first in controls else "[lazy]"  # which ends the text at the first opening
        lead = f"lead{option}: TEXT {literals([first], controls)}"
        rest = f"lead {literals(others, controls)} section"
        return [f"start: ({rest})* TEXT" if parallel else f"start: {rest} | TEXT", lead, _TEXT]


def _schema_of(answer: Grammar) -> Mapping[str, Any]:
    try:
        wanted = json.loads(answer.text)
    except (ValueError, RecursionError):
        wanted = None
    if not isinstance(wanted, dict):
        raise InvalidRequestError("grammar", "the JSON schema cannot be read; it is an object")
    return wanted


def literals(texts: Sequence[str], controls: Controls) -> str:
    """Texts in a row as a Lark expression; control tokens by their ids."""
    return " ".join(f"<[{controls[text]}]>" if text in controls else json.dumps(text) for text in texts if text)


def arguments(tool: Tool) -> str:
    """A tool's arguments as a Lark expression. A tool that is not strict may have a schema that is not understood in
    all its parts."""
    return schema(_ANY_OBJECT if tool.parameters is None else tool.parameters, is_strict=tool.strict)


def schema(given: Mapping[str, Any], *, is_strict: bool) -> str:
    """Text that fits a schema, as a Lark expression."""
    options = {} if is_strict or "x-guidance" in given else {"x-guidance": {"lenient": True}}
    return f"%json {json.dumps({**given, **options})}"


def json_call(tool: Tool, _controls: Controls, *, arguments_key: str = "arguments") -> str:
    """`{"name": ..., "arguments": {...}}`."""
    start = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments_key}": '
    return f'{json.dumps(start)} {arguments(tool)} "}}"'
