"""Efforts have the names that templates know, and prompts that end in an opened thought are told from others."""

from __future__ import annotations

import pytest

from forerun.chat.choice import choose_format
from forerun.chat.prompts import PromptWriter
from forerun.chat.reasoning import EFFORTS, opens_reasoning, reasoning_kwargs
from forerun.chat.templates import ChatTemplate
from forerun.errors import InvalidRequestError
from tests.chat.family_templates import CHATML, HERMES

HELLO = [{"role": "user", "content": "Hello"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, "", "")


def test_an_effort_is_a_switch_or_a_level_as_the_template_has_it() -> None:
    assert reasoning_kwargs("none", template(HERMES)) == {"enable_thinking": False}
    assert reasoning_kwargs("high", template(HERMES)) == {"enable_thinking": True}
    levels = [reasoning_kwargs(effort, template("{{ reasoning_effort }}"))["reasoning_effort"] for effort in EFFORTS]
    assert levels == ["low", "low", "low", "medium", "high", "high", "high"]
    assert reasoning_kwargs("low", template("{% if thinking %}{% endif %}")) == {"thinking": True}


@pytest.mark.parametrize(
    ("effort", "source"), [("low", CHATML), ("most", HERMES), ("low", "{% if %}"), ("none", "{{ messages }}<think>")]
)
def test_an_effort_that_means_nothing_is_refused(effort: str, source: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^reasoning_effort: "):
        reasoning_kwargs(effort, template(source))


def test_no_effort_is_what_a_model_makes_that_does_not_reason() -> None:
    assert reasoning_kwargs("none", template(CHATML)) == {}


def test_a_prompt_that_opened_a_thought_is_known() -> None:
    writer, hermes = PromptWriter(template(HERMES)), choose_format(HERMES)
    assert opens_reasoning(writer.render(HELLO).text, hermes)
    assert not opens_reasoning(writer.render(HELLO, template_kwargs={"enable_thinking": False}).text, hermes)
    assert opens_reasoning("<|start|>assistant<|channel|>analysis<|message|>", choose_format(None, name="harmony"))
