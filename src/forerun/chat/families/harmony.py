"""gpt-oss (Harmony): messages with a channel, and a recipient where they call.

    <|channel|>analysis<|message|>...<|end|>                                                    reasoning
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}    a call
    <|start|>assistant<|channel|>final<|message|>...                                            content

The prompt ends in `<|start|>assistant`. `<|return|>` and `<|call|>` end an answer and are not part of its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from forerun.chat.families.lark import arguments, literals
from forerun.chat.formats import Tool
from forerun.chat.pieces import OutputParser
from forerun.chat.reading import END, Answer, CoroutineParser, Reading, Source, Write
from forerun.core.grammar import Grammar, GrammarKind

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
MESSAGE_END: Final = "<|end|>"
CONSTRAIN: Final = "<|constrain|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
FINAL: Final = f"{CHANNEL}final{MESSAGE}"
_RECIPIENT: Final = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_MAX_HEADER: Final = 1_000  # characters; longer ones are text that was taken for a header
_NO_ARGUMENTS: Final = "{}"


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """A ChatFormat."""

    name: str = "harmony"
    controls: Mapping[str, int] = field(default_factory=dict)

    @property
    def reasoning_start(self) -> str:
        return f"{CHANNEL}analysis{MESSAGE}"

    @property
    def reasoning_end(self) -> str:
        """What follows the header of the final message is the answer."""
        return FINAL

    @property
    def markers(self) -> frozenset[str]:
        return frozenset({START, CHANNEL, MESSAGE, MESSAGE_END, CONSTRAIN, CALL, RETURN})

    @property
    def shown_tokens(self) -> Mapping[int, str]:
        return {token: text for text, token in self.controls.items()}

    def with_controls(self, controls: Mapping[str, int]) -> Self:
        return replace(self, controls={text: token for text, token in controls.items() if text in self.markers})

    def parser(self, *, tools: Sequence[Tool], starts_in_reasoning: bool = False) -> OutputParser:
        source, answer = Source(), Answer(holds_space=bool(tools))
        reading = _read(source, answer, calls=bool(tools), is_open=starts_in_reasoning)
        return CoroutineParser(answer, reading)

    def call_grammar(self, tools: Sequence[Tool], *, parallel: bool, required: bool) -> Grammar | None:
        """A call ends the answer: there is one at most, in any case."""
        if not tools or not (required or not parallel or any(tool.strict for tool in tools)):
            return None
        calls = [f"call_{index}: {_call(tool, self.controls)}" for index, tool in enumerate(tools)]
        names = [f"call_{index}" for index in range(len(tools))]
        ends = names if required else [*names, "final"]
        rules = [
            f"start: (thought | preamble)* ({' | '.join(ends)})",
            f"thought: {literals([CHANNEL, 'analysis', MESSAGE], self.controls)} {self._until_next}",
            f"preamble: {literals([CHANNEL, 'commentary', MESSAGE], self.controls)} {self._until_next}",
            f"final: {literals([CHANNEL, 'final', MESSAGE], self.controls)} TEXT",
            r"TEXT: /(.|\n)*/",
            *calls,
        ]
        return Grammar(GrammarKind.LARK, "\n".join(["%llguidance {}", *rules]))

    @property
    def _until_next(self) -> str:
        return f"TEXT {literals([MESSAGE_END, START, 'assistant'], self.controls)}"

    def call_or_answer_grammar(self, tools: Sequence[Tool], answer: Grammar, *, parallel: bool) -> Grammar | None:
        """None: reasoning, calls and answers are messages of one grammar that has no place for another yet."""
        del tools, answer, parallel
        return None


def _call(tool: Tool, controls: Mapping[str, int]) -> str:
    start = [CHANNEL, f"commentary to=functions.{tool.name} ", CONSTRAIN, "json", MESSAGE]
    return f"{literals(start, controls)} {arguments(tool)}"


def _read(source: Source, answer: Answer, *, calls: bool, is_open: bool) -> Reading[None]:
    if is_open:
        yield from _read_body(source, answer, answer.reasoning)
    while (yield from source.peek()) != END:
        yield from _read_message(source, answer, calls=calls)


def _read_message(source: Source, answer: Answer, *, calls: bool) -> Reading[None]:
    """A header and what follows it; text without a header is content."""
    source.record()
    header = yield from _read_header(source)
    if header is None:
        source.rewind(0)
        if (yield from source.took(START)):
            answer.content(START)
        yield from _read_body(source, answer, answer.content)
        return
    recipient = _RECIPIENT.search(header)
    channel = _CHANNEL.search(header)
    if recipient is not None and calls:
        yield from _read_call(source, answer, recipient[1])
    elif channel is not None and channel[1] == "analysis" and recipient is None:
        yield from _read_body(source, answer, answer.reasoning)
    else:
        yield from _read_body(source, answer, answer.content)


def _read_header(source: Source) -> Reading[str | None]:
    """What comes up to `<|message|>`, or up to where the answer was cut off; None: no header comes."""
    header = ""
    if (yield from source.took(START)):
        header = START
    elif not (yield from _follows_header(source)):
        return None
    while not header.endswith(MESSAGE):
        char = yield from source.next()
        header += char
        if not char:
            break
        if len(header) > _MAX_HEADER:
            return None
    return header


def _follows_header(source: Source) -> Reading[bool]:
    """Whether a channel or a recipient comes next. Takes nothing."""
    mark = source.mark
    yield from source.skip_space()
    found = False
    for sign in (CHANNEL, "to="):
        found = found or (yield from source.took(sign))
    source.rewind(mark)
    return found


def _read_call(source: Source, answer: Answer, name: str) -> Reading[None]:
    answer.call(name)
    size = 0

    def write(text: str) -> None:
        nonlocal size
        size += len(text)
        answer.arguments(text)

    end = yield from _read_body(source, answer, write)
    if end and not size:
        answer.arguments(_NO_ARGUMENTS)


def _read_body(source: Source, answer: Answer, write: Write) -> Reading[str]:
    end = yield from source.until((MESSAGE_END, CALL, RETURN, START), write)
    if end == START:
        source.unread(START)
    answer.break_off()
    return end
