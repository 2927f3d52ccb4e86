"""Conversations as one model reads them, and its answers as its family writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from forerun.chat.choice import AUTO, choose_format
from forerun.chat.formats import ChatFormat, Tool
from forerun.chat.pieces import OutputParser
from forerun.chat.prompts import PromptWriter
from forerun.chat.reasoning import opens_reasoning, reasoning_kwargs
from forerun.chat.templates import ChatTemplate
from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.prompt_text import PromptText
from forerun.errors import InvalidRequestError
from forerun.server.jobs import ChatJob

_USUAL_VERBOSITY: Final = "medium"


class ChatFront:
    """Writes prompts, and knows how to read and to steer the answers. Any thread."""

    def __init__(self, writer: PromptWriter, format_name: str = AUTO) -> None:
        """Raises InvalidConfigError for a format that is not known."""
        self._writer = writer
        source = writer.template.source
        self.format: ChatFormat = choose_format(source, name=format_name, controls=writer.controls)

    def text(self, job: ChatJob) -> PromptText:
        """The conversation through the template, ready for the answer. Raises InvalidRequestError."""
        names = template_names(job.template_kwargs, self._writer.template)
        return self._writer.render(job.messages, tools=_shown_tools(job), template_kwargs=names)

    def parser(self, job: ChatJob, prompt: PromptText) -> OutputParser:
        """What reads one answer."""
        return self.format.parser(tools=callable_tools(job), starts_in_reasoning=self.opens_reasoning(prompt))

    def opens_reasoning(self, prompt: PromptText) -> bool:
        """Whether the prompt ends in a reasoning section that the answer goes on with."""
        return opens_reasoning(prompt.text, self.format)

    def grammar(self, job: ChatJob, prompt: PromptText) -> Grammar | None:
        """What the answer has to match: reasoning is free. Raises InvalidRequestError where it cannot be enforced."""
        calls = self._call_grammar(job)
        grammar = calls or job.grammar
        if grammar is None or grammar.after:
            return grammar
        # A prompt that has not opened reasoning gets none: an answer that may begin with it or not cannot be steered.
        # Without a tag to open it (Harmony) reasoning is part of the grammar of calls.
        is_certain = self.opens_reasoning(prompt) or (calls is None and "/" not in self.format.reasoning_end)
        return replace(grammar, after=self.format.reasoning_end) if is_certain else grammar

    def _call_grammar(self, job: ChatJob) -> Grammar | None:
        """What calls have to match, and an answer beside them; None where calls are free or there can be none."""
        tools, required = callable_tools(job), job.tool_choice.mode == "required"
        if not tools:
            return None
        if job.grammar is not None and not required:
            return self._call_or_answer_grammar(job, job.grammar)
        # Required calls are the whole answer: what a response_format says of answers has nothing to hold for.
        if not required and job.parallel_tool_calls and not any(tool.strict for tool in tools):
            return None
        grammar = self.format.call_grammar(tools, parallel=job.parallel_tool_calls, required=required)
        if grammar is None:
            field = "tool_choice" if required else "tools" if job.parallel_tool_calls else "parallel_tool_calls"
            said = f"cannot be enforced in this model's format of calls ({self.format.name}); leave it to the model"
            raise InvalidRequestError(field, said)
        return grammar

    def _call_or_answer_grammar(self, job: ChatJob, answer: Grammar) -> Grammar:
        grammar = self.format.call_or_answer_grammar(callable_tools(job), answer, parallel=job.parallel_tool_calls)
        if grammar is None:
            field = "response_format" if answer.kind is GrammarKind.JSON_SCHEMA else "grammar"
            said = f"cannot be enforced beside tool calls in this model's format of calls ({self.format.name})"
            raise InvalidRequestError(field, f"{said}; set tool_choice to 'none' or 'required', or leave one out")
        return grammar

    def __repr__(self) -> str:
        return f"ChatFront({self.format.name}, {self._writer!r})"


def callable_tools(job: ChatJob) -> Sequence[Tool]:
    """The tools that the answer may call."""
    choice = job.tool_choice
    if choice.mode == "none":
        return ()
    return job.tools if choice.names is None else [tool for tool in job.tools if tool.name in choice.names]


def _shown_tools(job: ChatJob) -> Sequence[Tool]:
    """Those the model is told of. All, where some are allowed: so the prompt stays the same from call to call."""
    return () if job.tool_choice.mode == "none" else job.tools


def template_names(given: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    """What a template is told: OpenAI's `reasoning_effort` and `verbosity` in its own words.

    Raises InvalidRequestError where it has none for them.
    """
    names = dict(given)
    effort, verbosity = names.pop("reasoning_effort", None), names.pop("verbosity", None)
    if effort is not None:
        names = reasoning_kwargs(str(effort), template) | names
    if verbosity is None:
        return names
    if "verbosity" in template.names:
        return {**names, "verbosity": verbosity}
    if verbosity != _USUAL_VERBOSITY:
        raise InvalidRequestError("verbosity", "this model's chat template has no use for it; leave it out")
    return names
