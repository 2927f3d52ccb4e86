"""What the families have in common: a reader of the answer, made of a reader of reasoning and one of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeAlias

from forerun.chat.families.lark import CallSyntax
from forerun.chat.formats import Tool
from forerun.chat.pieces import OutputParser
from forerun.chat.reading import Answer, CoroutineParser, Reading, Source
from forerun.core.grammar import Grammar

Tools: TypeAlias = Mapping[str, Tool]
"""The tools on offer by name; none: nothing is taken for a call."""
ReadCalls: TypeAlias = Callable[[Source, Answer, Tools], Reading[None]]
"""Reads what follows reasoning, to the end: content and calls."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """The tags around reasoning."""

    start: str
    end: str


THINK: Final = Thinking("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class TaggedFamily:
    """A ChatFormat: reasoning in tags at the start, then content with calls in it."""

    name: str
    read_calls: ReadCalls
    syntax: CallSyntax
    call_markers: tuple[str, ...] = ()
    thinking: Thinking = THINK
    controls: Mapping[str, int] = field(default_factory=dict)

    @property
    def reasoning_start(self) -> str:
        return self.thinking.start

    @property
    def reasoning_end(self) -> str:
        return self.thinking.end

    @property
    def markers(self) -> frozenset[str]:
        return frozenset({self.thinking.start, self.thinking.end, *self.call_markers})

    @property
    def shown_tokens(self) -> Mapping[int, str]:
        return {token: text for text, token in self.controls.items()}

    def with_controls(self, controls: Mapping[str, int]) -> Self:
        markers = self.markers
        return replace(self, controls={text: token for text, token in controls.items() if text in markers})

    def parser(self, *, tools: Sequence[Tool], starts_in_reasoning: bool = False) -> OutputParser:
        source, answer = Source(), Answer(holds_space=bool(tools))
        offered = {tool.name: tool for tool in tools}
        return CoroutineParser(answer, self._read(source, answer, offered, is_open=starts_in_reasoning))

    def _read(self, source: Source, answer: Answer, tools: Tools, *, is_open: bool) -> Reading[None]:
        yield from read_reasoning(source, answer, self.thinking, is_open=is_open)
        if tools:
            yield from self.read_calls(source, answer, tools)
        else:
            yield from source.until((), answer.content)

    def call_grammar(self, tools: Sequence[Tool], *, parallel: bool, required: bool) -> Grammar | None:
        return self.syntax.grammar(tools, self.controls, parallel=parallel, required=required)

    def call_or_answer_grammar(self, tools: Sequence[Tool], answer: Grammar, *, parallel: bool) -> Grammar | None:
        return self.syntax.grammar_or_answer(tools, self.controls, answer, parallel=parallel)


def read_reasoning(source: Source, answer: Answer, thinking: Thinking, *, is_open: bool) -> Reading[None]:
    """Reasoning at the start of an answer. `is_open`: the prompt has opened it; some models do so again."""
    source.record()
    yield from source.skip_space()
    has_opened = yield from source.took(thinking.start)
    if not (has_opened or is_open):
        source.unread(source.recorded)
        return
    answer.break_off()
    yield from source.until((thinking.end,), answer.reasoning)
    answer.break_off()
