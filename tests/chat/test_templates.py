from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from forerun.chat.templates import MAX_TEMPLATE_BYTES, ChatTemplate
from forerun.errors import InvalidRequestError
from forerun.models.gguf_header import read_header

HELLO = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: Any = None, **options: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(HELLO if messages is None else messages, **options)


def refusal(source: str, messages: Any = None) -> str:
    started = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        render(source, messages)
    assert time.monotonic() - started < 5
    assert caught.value.field.startswith("messages")
    return str(caught.value)


def test_the_default_models_own_template_renders_a_conversation(smollm2_path: Path) -> None:
    source = read_header(smollm2_path).string("tokenizer.chat_template")
    assert source is not None
    template = ChatTemplate(source, "<|im_start|>", "<|im_end|>")
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert template.render(HELLO) == f"{system}<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    own = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert template.render(own, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    )


def test_an_earlier_turn_renders_as_a_prefix_of_the_later_conversation(smollm2_path: Path) -> None:
    source = read_header(smollm2_path).string("tokenizer.chat_template") or ""
    template = ChatTemplate(source, "", "")
    longer = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "More"}]
    assert template.render(longer).startswith(template.render(HELLO) + "Hi.")


def test_blocks_leave_no_blank_lines_as_hugging_face_renders_them() -> None:
    assert (
        render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}")
        == "Hello\n"
    )


def test_special_tokens_tools_and_the_generation_prompt_are_there() -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ add_generation_prompt }}"
    assert render(source) == "<s></s>TrueTrue"
    assert render(source, add_generation_prompt=False, tools=[{}]) == "<s></s>FalseFalse"


def test_tojson_leaves_html_and_other_scripts_alone() -> None:
    value = {"b": "<a href='x'>&", "a": "é"}
    messages = [{"role": "user", "content": value}]
    assert render("{{ messages[0].content | tojson }}", messages) == json.dumps(value, ensure_ascii=False)
    assert render("{{ messages[0].content | tojson(indent=2) }}", messages).startswith('{\n  "b"')


def test_loop_controls_and_generation_blocks_are_known() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hello!"


def test_the_date_is_that_of_the_clock_it_was_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", "", "", now=lambda: datetime(2026, 11, 29))
    assert template.render(HELLO) == "29 Nov 2026"


def test_a_template_that_refuses_a_conversation_is_quoted() -> None:
    source = "{{ raise_exception('Roles must alternate user/assistant') }}"
    assert refusal(source) == "messages: the model's chat template says: Roles must alternate user/assistant"


@pytest.mark.parametrize(
    "messages", [[], "Hello", b"Hello", {"role": "user"}, 7, [None], ["Hello"], [{}], [{"role": 1}]]
)
def test_malformed_messages_are_refused_before_the_template_sees_them(messages: Any) -> None:
    assert "expected" in refusal("never rendered", messages)


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].absent.further }}",
        "{{ 1 // 0 }}",
        "{{ undefined_function() }}",
        "{{ messages | no_such_filter }}",
        "{% include 'other' %}",
        "{{ {} | tojson(1, 2, 3, 4, 5, 6) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ ('(' * 5000) }}{{" + "(" * 5_000 + "1" + ")" * 5_000 + "}}",
    ],
)
def test_a_broken_template_fails_the_request_and_nothing_else(source: str) -> None:
    assert "chat template" in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ (''|attr('__class__')).__name__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__closure__ }}",
        "{{ '{0.__class__.__base__}'.format(messages) }}",
        "{{ lipsum.__globals__['os'].environ }}",
        "{{ namespace.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_lets_no_template_out(source: str) -> None:
    try:
        rendered = render(source)
    except InvalidRequestError:
        return
    assert rendered == ""  # an attribute that is withheld renders as nothing


def test_a_template_cannot_change_the_conversation() -> None:
    messages = [dict(HELLO[0])]
    assert "chat template" in refusal("{{ messages.append(1) }}", messages)
    assert "chat template" in refusal("{{ messages[0].update(role='system') }}", messages)
    assert messages == HELLO


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) if b < 0 %}{% endfor %}{% endfor %}",
        "{% for a in ms recursive %}{{ loop(ms) }}{{ loop(ms) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ n.x }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ '%1000000000d' % 1 }}{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
        "{{ range(99999) | join('y' * 1000000) }}",
        "{{ {} | tojson(indent=1000000000) }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'xxxxxxxxxx' * 100000 }}{% endfor %}",
    ],
)
def test_a_template_that_grows_without_bound_is_stopped(source: str) -> None:
    ms = [*HELLO, *HELLO]
    with pytest.raises(InvalidRequestError, match="chat template"):
        render(source, names={"ms": ms})


def test_a_long_conversation_is_far_from_the_bound() -> None:
    messages = [{"role": "user", "content": "word " * 1_000}] * 1_000
    body = "{% if m.role in ['user', 'tool'] %}{{ '<' + m.role + '>' + m.content | trim }}{% endif %}"
    source = f"{{% for m in messages %}}{body}{{% endfor %}}"
    assert len(render(source, messages)) == 1_000 * (len("<user>") + 4_999)


def test_ordinary_products_are_allowed() -> None:
    assert render("{{ '-' * 3 }}{{ 2 * 3 }}{{ 2 ** 10 }}") == "---61024"


def test_a_template_of_more_than_a_megabyte_is_refused_with_its_size() -> None:
    assert f"has {MAX_TEMPLATE_BYTES + 1} bytes" in refusal("x" * (MAX_TEMPLATE_BYTES + 1))


def test_a_template_prints_its_size_and_tokens() -> None:
    assert repr(ChatTemplate("abc", "<s>", "")) == "ChatTemplate(3 characters, {'bos_token': '<s>', 'eos_token': ''})"
