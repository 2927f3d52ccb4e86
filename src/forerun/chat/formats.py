"""How a family of models writes reasoning and tool calls: what reads it, and what makes the model write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forerun.chat.pieces import OutputParser
from forerun.core.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON Schema of the arguments; None: any object."""
    strict: bool = False


class ChatFormat(Protocol):
    """One family's way of writing. Stateless."""

    @property
    def name(self) -> str: ...

    @property
    def reasoning_start(self) -> str:
        """The text that opens reasoning ("<think>"), empty where the family has none."""
        ...

    @property
    def reasoning_end(self) -> str:
        """The text that ends reasoning ("</think>"), empty where the family has none."""
        ...

    @property
    def shown_tokens(self) -> Mapping[int, str]:
        """Markers of this family that are control tokens, spelled: the text that is parsed has to hold them
        (`SamplingParams.shown_tokens`)."""
        ...

    def parser(self, *, tools: Sequence[Tool], starts_in_reasoning: bool = False) -> OutputParser:
        """A parser for one answer. Without tools nothing is taken for a call. `starts_in_reasoning`: the prompt has
        opened a reasoning section that the answer goes on with."""
        ...

    def call_grammar(self, tools: Sequence[Tool], *, parallel: bool, required: bool) -> Grammar | None:
        """What makes the answer hold calls of these tools with arguments that fit their schemas: at least one where
        `required`, else text with calls in between; at most one where not `parallel`. None: nothing to enforce."""
        ...

    def call_or_answer_grammar(self, tools: Sequence[Tool], answer: Grammar, *, parallel: bool) -> Grammar | None:
        """What makes the answer either calls of these tools and nothing else, or one that `answer` describes. None: the
        family cannot be held to that."""
        ...
