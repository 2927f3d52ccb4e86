"""The format is told by what a template writes, or by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.chat.choice import FORMAT_NAMES, choose_format
from forerun.errors import InvalidConfigError
from forerun.models.gguf_header import read_header


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<|im_start|>...<tool_call>\n{{ call | tojson }}\n</tool_call>", "hermes"),
        ("<|start_header_id|>...<|python_tag|>", "llama3"),
        ("<tool_call>\n<function=example>", "qwen-coder"),
        ("[INST][/INST][TOOL_CALLS][", "mistral"),
        ("[INST][/INST][TOOL_CALLS]{{ name }}[ARGS]", "mistral-args"),
        ("<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json", "deepseek"),
        ("<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>", "deepseek-v3.1"),
        ("<|start_of_role|>assistant<|tool_call|>", "granite"),
        ("<start_of_turn>model", "gemma"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("<|im_start|>{{ message.role }}", "generic"),
        ("", "generic"),
        (None, "generic"),
    ],
)
def test_the_markers_in_a_template_tell_the_format(template: str | None, name: str) -> None:
    assert choose_format(template).name == name


def test_the_default_model_was_taught_no_format(smollm2_path: Path) -> None:
    assert choose_format(read_header(smollm2_path).string("tokenizer.chat_template")).name == "generic"


def test_a_name_overrides_the_template() -> None:
    for name in FORMAT_NAMES:
        assert choose_format("<tool_call>", name=name).name == name


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidConfigError, match=r"chat_format: is 'hermse'; there are auto, .*hermes"):
        choose_format(None, name="hermse")


def test_markers_that_are_control_tokens_have_to_be_shown() -> None:
    controls = {"<tool_call>": 7, "<think>": 8, "<|im_end|>": 9}
    assert choose_format("<tool_call>", controls=controls).shown_tokens == {7: "<tool_call>", 8: "<think>"}
    assert choose_format("<tool_call>").shown_tokens == {}
