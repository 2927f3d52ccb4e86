"""Answers of each family are taken apart alike, however they are cut, and nothing of them is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.chat.choice import FORMAT_NAMES
from forerun.chat.pieces import Content, Reasoning, ToolArguments, ToolCall
from tests.chat.parsing import TOOLS, calls, content, is_beginning, joined, parsed, reasoning, said

PARIS = '{"city": "Paris"}'
FAMILY_ANSWERS = {
    "hermes": [
        f'Let me look.\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        f'<think>\nHm.\n</think>\n\n<tool_call>\n{{"arguments": {PARIS}, "name": "get_weather"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "search", "arguments": {"query": "a \\"b\\" [c] {d"}}\n</tool_call>',
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        "<tool_call>not a call</tool_call> and <b>text</b>",
        '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"\\ud83c\\udf08\\"}"}</tool_call>',
    ],
    "llama3": [
        f'{{"name": "get_weather", "parameters": {PARIS}}}',
        f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}; {{"name": "search", "parameters": {{}}}}',
        '{"city": "Paris", "note": "an answer in JSON"}',
        '{"type": "function", "function": {"name": "search", "parameters": {"query": "x"}}}',
    ],
    "generic": [
        f'{{"tool_calls": [{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "search", "arguments": {{}}}}]}}',
        f'```json\n[{{"name": "get_weather", "arguments": {PARIS}}}]\n```',
        "```python\nprint(1)\n```\nThat is all.",
        '{"name": "Ada", "age": 36}',
    ],
}
FAMILY_ANSWERS |= {
    "qwen-coder": [
        FAMILY_ANSWERS["hermes"][2],
        "Well.\n<function=search>\n<parameter=query>x</parameter>\n</function>",
    ],
    "mistral": [
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "search", "arguments": {{}}}}]',
        "[THINK]Hm.[/THINK]See [TOOL_CALLS] in text",
    ],
    "mistral-args": [f"One moment.[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]search[CALL_ID]abc[ARGS]{{}}"],
    "deepseek": [
        "<think>Hm.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>",
    ],
    "deepseek-v3.1": [
        f"Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>search<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ],
    "granite": [
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "search", "arguments": {{}}}}]'
    ],
    "gemma": [
        "```tool_code\nprint(get_weather('Paris'))\nsearch()\n```",
        f'Sure.\n```json\n[{{"name": "get_weather", "parameters": {PARIS}}}, {{"name": "search"}}]\n```',
        "```tool_code\nimport os\n```",
        '```json\n{"a": 1}\n```',
    ],
    "harmony": [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS}<|end|>"
        "<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{}<|call|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes, <|ok|>.<|return|>",
        "No header at all.",
        "<|start|>" * 3,
    ],
}
ANSWERS = [(name, text) for name, texts in FAMILY_ANSWERS.items() for text in texts]
SOUP = ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "search"', '"arguments": {', "}", "]", "[", ","]
SOUP += [
    '"',
    "\\",
    "\n",
    " ",
    "text",
    "<function=f>",
    "<parameter=city>",
    "</parameter>",
    "```json\n",
    "<|python_tag|>",
]
SOUP += ["[TOOL_CALLS]", "[ARGS]", "<|start|>", "<|channel|>analysis", "<|message|>", " to=functions.f", "<|end|>"]
SOUP += [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<|tool_call|>",
    "```tool_code\n",
    "search()",
]


@pytest.mark.parametrize(("name", "text"), ANSWERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_pieces_do_not_depend_on_how_the_text_was_cut(name: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(name, *chunks) == parsed(name, text)


@pytest.mark.parametrize(("name", "text"), ANSWERS)
def test_what_has_been_said_of_a_text_stays_said(name: str, text: str) -> None:
    whole = parsed(name, text)
    for end in range(len(text) + 1):
        assert is_beginning(said(name, text[:end]), whole), text[:end]


@pytest.mark.parametrize("name", FORMAT_NAMES)
@settings(max_examples=25, deadline=None)
@given(parts=st.lists(st.sampled_from(SOUP), max_size=12), data=st.data())
def test_no_text_breaks_a_parser_and_all_of_it_is_told_alike(name: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    whole = parsed(name, text)
    assert parsed(name, *text) == whole
    cut = data.draw(st.integers(0, len(text)))
    assert is_beginning(said(name, text[:cut]), whole)


@pytest.mark.parametrize("name", FORMAT_NAMES)
@settings(max_examples=25, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_without_tools_is_content_as_it_stands(name: str, text: str) -> None:
    assert content(parsed(name, text, tools=())) == text


@pytest.mark.parametrize("name", [name for name in FAMILY_ANSWERS if name not in ("hermes", "llama3", "qwen-coder")])
def test_two_calls_of_each_family_are_read_without_a_rest(name: str) -> None:
    pieces = parsed(name, FAMILY_ANSWERS[name][0])
    assert calls(pieces) == [("get_weather", {"city": "Paris"}), ("search", {})]
    assert content(pieces) in ("", "One moment.", "Look.")


def test_what_only_looks_like_calls_of_a_family_is_content() -> None:
    assert parsed("mistral", FAMILY_ANSWERS["mistral"][1]) == [Reasoning("Hm."), Content("See [TOOL_CALLS] in text")]
    for name, number in (("deepseek", 1), ("gemma", 2), ("gemma", 3), ("harmony", 2)):
        assert parsed(name, FAMILY_ANSWERS[name][number]) == [Content(FAMILY_ANSWERS[name][number])]


def test_qwen_coder_may_leave_the_outer_tag_out() -> None:
    pieces = parsed("qwen-coder", FAMILY_ANSWERS["qwen-coder"][1])
    assert calls(pieces) == [("search", {"query": "x"})]
    assert content(pieces) == "Well."


def test_gemma_calls_in_json_are_read_behind_text() -> None:
    pieces = parsed("gemma", FAMILY_ANSWERS["gemma"][1])
    assert calls(pieces) == [("get_weather", {"city": "Paris"}), ("search", {})]
    assert content(pieces) == "Sure."


def test_harmony_channels_are_reasoning_preamble_and_answer() -> None:
    assert parsed("harmony", FAMILY_ANSWERS["harmony"][0])[:2] == [Reasoning("Hm."), Content("Look.")]
    assert parsed("harmony", FAMILY_ANSWERS["harmony"][1]) == [Reasoning("Hm."), Content("Yes, <|ok|>.")]
    cut = FAMILY_ANSWERS["harmony"][1][: -len("l<|message|>Yes, <|ok|>.<|return|>")]
    assert parsed("harmony", cut) == [Reasoning("Hm.")]  # a header that was cut off is no text
    assert parsed("harmony", FAMILY_ANSWERS["harmony"][3]) == []


def test_hermes_calls_are_read_with_the_text_before_them() -> None:
    text = FAMILY_ANSWERS["hermes"][0]
    assert parsed("hermes", text) == [
        Content("Let me look."),
        ToolCall(0, "get_weather"),
        ToolArguments(0, PARIS),
    ]


def test_reasoning_comes_before_parallel_calls_whatever_the_order_of_their_keys() -> None:
    pieces = parsed("hermes", FAMILY_ANSWERS["hermes"][1])
    assert pieces[0] == Reasoning("Hm.")
    assert calls(pieces) == [("get_weather", {"city": "Paris"}), ("search", {"query": 'a "b" [c] {d'})]
    assert content(pieces) == ""


def test_calls_in_xml_become_json_by_the_types_of_their_parameters() -> None:
    assert calls(parsed("hermes", FAMILY_ANSWERS["hermes"][2])) == [("get_weather", {"city": "New\nYork", "days": 3})]


def test_arguments_given_as_text_are_decoded() -> None:
    assert calls(parsed("hermes", FAMILY_ANSWERS["hermes"][4])) == [("search", {"query": "🌈"})]


def test_t5_arguments_are_streamed_as_they_come_behind_one_whole_name() -> None:
    text = FAMILY_ANSWERS["hermes"][0]
    at = text.index("Par") + 3
    assert said("hermes", text[: text.index("get_w")]) == [Content("Let me look.")]
    assert said("hermes", text[:at]) == [
        Content("Let me look."),
        ToolCall(0, "get_weather"),
        ToolArguments(0, '{"city": "Par'),
    ]


def test_t5_a_call_that_was_cut_off_stays_as_far_as_it_came() -> None:
    text = FAMILY_ANSWERS["hermes"][0]
    pieces = parsed("hermes", text[: text.index("ris")])
    assert pieces[1:] == [ToolCall(0, "get_weather"), ToolArguments(0, '{"city": "Pa')]


@pytest.mark.parametrize("text", ["<tool_call>not a call</tool_call>", '<tool_call>{"na', "<tool_call>[1, 2]"])
def test_what_is_no_call_is_content(text: str) -> None:
    assert parsed("hermes", text) == [Content(text)]


@pytest.mark.parametrize("end", ["}\n</tool_call>", "\n</tool_call>", "}}\n</tool_call>", "", "}]"])
def test_a_call_may_lack_its_last_brace_or_have_one_too_many(end: str) -> None:
    pieces = parsed("hermes", f'<tool_call>\n{{"name": "search", "arguments": {{"query": "x"}}{end}')
    assert calls(pieces) == [("search", {"query": "x"})]
    assert content(pieces) == ""


def test_a_call_without_arguments_has_an_empty_object() -> None:
    for members in ('"name": "search"', '"name": "search", "arguments": null', '"name": "search", "arguments": {}'):
        assert calls(parsed("hermes", f"<tool_call>{{{members}}}</tool_call>")) == [("search", {})]


def test_bare_json_is_a_call_only_with_the_name_of_a_tool() -> None:
    assert calls(parsed("llama3", FAMILY_ANSWERS["llama3"][0])) == [("get_weather", {"city": "Paris"})]
    for text in (FAMILY_ANSWERS["llama3"][2], FAMILY_ANSWERS["generic"][3], "[1, 2]", '{"arguments": {}}', "{}"):
        assert parsed("generic", text) == parsed("llama3", text) == [Content(text)]


def test_llama_calls_follow_the_python_tag_with_semicolons_between() -> None:
    pieces = parsed("llama3", FAMILY_ANSWERS["llama3"][1])
    assert calls(pieces) == [("get_weather", {"city": "Paris"}), ("search", {})]
    assert content(pieces) == ""
    assert calls(parsed("llama3", FAMILY_ANSWERS["llama3"][3])) == [("search", {"query": "x"})]


def test_code_behind_the_python_tag_goes_to_the_interpreter_tool() -> None:
    python = type(TOOLS[0])("code_interpreter")
    assert calls(parsed("llama3", '<|python_tag|>print("1")\n', tools=[python])) == [
        ("code_interpreter", {"code": 'print("1")\n'})
    ]
    assert parsed("llama3", "<|python_tag|>print(1)") == [Content("<|python_tag|>print(1)")]


def test_the_generic_format_takes_lists_wrappers_and_fences() -> None:
    assert calls(parsed("generic", FAMILY_ANSWERS["generic"][0])) == [
        ("get_weather", {"city": "Paris"}),
        ("search", {}),
    ]
    pieces = parsed("generic", FAMILY_ANSWERS["generic"][1])
    assert calls(pieces) == [("get_weather", {"city": "Paris"})]
    assert content(pieces) == ""
    assert parsed("generic", FAMILY_ANSWERS["generic"][2]) == [Content(FAMILY_ANSWERS["generic"][2])]


def test_reasoning_that_the_prompt_opened_goes_on_until_its_end() -> None:
    pieces = parsed("hermes", "Hm, well.\n</think>\n\nYes.", starts_in_reasoning=True)
    assert pieces == [Reasoning("Hm, well."), Content("Yes.")]
    again = parsed("hermes", "<think>Hm.</think>Yes.", starts_in_reasoning=True)
    assert again == [Reasoning("Hm."), Content("Yes.")]


def test_reasoning_is_looked_for_at_the_start_alone() -> None:
    text = "The tag <think> begins a thought."
    assert parsed("hermes", text) == [Content(text)]
    assert parsed("hermes", "<think>\n\n</think>\n\nYes.") == [Content("Yes.")]


def test_reasoning_cut_off_is_reasoning() -> None:
    pieces = parsed("hermes", "<think>Let me see </thi")
    assert reasoning(pieces) == "Let me see </thi"
    assert joined(pieces) == pieces


def test_a_deeply_nested_answer_is_read_like_any_other() -> None:
    deep = "[" * 20_000 + "]" * 20_000
    text = f'<tool_call>{{"name": "search", "arguments": {{"query": {deep}}}}}</tool_call>'
    pieces = parsed("hermes", text)
    assert pieces == [ToolCall(0, "search"), ToolArguments(0, f'{{"query": {deep}}}')]
    wrapped = '{"function": ' * 5_000
    assert parsed("llama3", wrapped) == [Content(wrapped)]
