"""Grammars of calls, tried with llguidance itself on a vocabulary of bytes and the families' control tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from forerun.chat.choice import FORMAT_NAMES, choose_format
from forerun.chat.formats import ChatFormat, Tool
from forerun.core.grammar import Grammar, GrammarKind
from forerun.errors import InvalidRequestError
from tests.chat.parsing import calls, parsed

CONTROLS: Final = (
    *("<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
)
EOS: Final = 256
IDS: Final = {text: EOS + 1 + index for index, text in enumerate(CONTROLS)}
WEATHER: Final = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"$ref": "#/$defs/days"},
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    },
    strict=True,
)
NOW: Final = Tool('now "now"', strict=True)
GOOD: Final = '{"city": "Paris", "days": 3, "unit": "C"}'
BAD: Final = '{"city": "Paris", "days": 12}'


class Bytes:
    eos_token_id = EOS
    bos_token_id = EOS
    tokens = [bytes([code]) for code in range(256)] + [b"<eos>"] + [text.encode() for text in CONTROLS]
    special_token_ids = (EOS, *IDS.values())

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=len(Bytes.tokens), eos_token=EOS)


def tokens_of(chosen: ChatFormat, text: str) -> list[int]:
    """The text's bytes, with the format's control tokens as such."""
    tokens: list[int] = []
    while text:
        found = next((one for one in chosen.shown_tokens.values() if text.startswith(one)), None)
        tokens += [IDS[found]] if found else text[0].encode()
        text = text[len(found or text[0]) :]
    return tokens


class Trial:
    """One grammar and what it lets through."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        name: str,
        tools: Sequence[Tool] = (WEATHER, NOW),
        text: str | None = None,
        **kind: bool,
    ) -> None:
        """`text`: a grammar to try in place of the calls' own."""
        self.format = choose_format(None, name=name, controls=IDS)
        grammar = self.format.call_grammar(tools, parallel=kind.get("parallel", True), required=kind["required"])
        assert grammar is not None
        self._tokenizer, self._text = tokenizer, grammar.text if text is None else text

    def accepted(self, text: str) -> tuple[int, bool]:
        """How many tokens may come so, and whether the answer may end behind them."""
        matcher = LLMatcher(self._tokenizer, self._text)
        assert not matcher.is_error(), matcher.get_error()
        tokens = tokens_of(self.format, text)
        count = matcher.validate_tokens(tokens)
        matcher.consume_tokens(tokens[:count])
        return count, count == len(tokens) and matcher.is_accepting()

    def allows(self, text: str) -> bool:
        return self.accepted(text)[1]


# An answer with one call of get_weather, by what comes in place of its arguments, and what stands between two.
ONE: Final = {
    "hermes": ('<tool_call>\n{"name": "get_weather", "arguments": ', "}\n</tool_call>", "\n"),
    "llama3": ('{"name": "get_weather", "parameters": ', "}", "; "),
    "mistral-args": ("[TOOL_CALLS]get_weather[ARGS]", "", ""),
    "granite": ('<|tool_call|>[{"name": "get_weather", "arguments": ', "}]", None),
    "mistral": ('[TOOL_CALLS][{"name": "get_weather", "arguments": ', "}]", None),
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        None,
    ),
    "deepseek-v3.1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        None,
    ),
    "generic": ('{"tool_calls": [{"name": "get_weather", "arguments": ', "}]}", None),
    "gemma": ('{"tool_calls": [{"name": "get_weather", "arguments": ', "}]}", None),
    "harmony": ("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>", "", None),
}
XML: Final = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n{}\n</parameter>\n"
    "</function>\n</tool_call>"
)


def test_every_family_has_a_case_here() -> None:
    assert {*ONE, "qwen-coder"} == {*FORMAT_NAMES}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("required", [True, False])
def test_a_strict_call_fits_its_schema_and_reads_back(tokenizer: LLTokenizer, name: str, required: bool) -> None:  # noqa: FBT001
    trial = Trial(tokenizer, name, required=required)
    start, end, _ = ONE[name]
    assert trial.allows(start + GOOD + end)
    assert calls(parsed(trial.format, start + GOOD + end, tools=(WEATHER,))) == [("get_weather", json.loads(GOOD))]
    assert not trial.allows(start + BAD + end)
    assert not trial.allows((start + GOOD + end).replace("get_weather", "get_whether"))


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_required_call_leaves_no_way_around_it(tokenizer: LLTokenizer, name: str) -> None:
    trial = Trial(tokenizer, name, required=True)
    for text in ("", "Hello", " ", "{}"):
        assert not trial.allows(text)
    assert trial.accepted("Hello")[0] == 0


@pytest.mark.parametrize("name", [name for name in FORMAT_NAMES if name != "harmony"])
def test_text_without_calls_is_free_where_none_is_required(tokenizer: LLTokenizer, name: str) -> None:
    trial = Trial(tokenizer, name, required=False)
    for text in ("Hello, <b>you</b>: [1] {2}", "", "Ünïcode\n\nlines"):
        assert trial.allows(text)


@pytest.mark.parametrize("name", [name for name, (_, _, between) in ONE.items() if between is not None])
def test_several_calls_follow_one_another_only_where_they_may(tokenizer: LLTokenizer, name: str) -> None:
    start, end, between = ONE[name]
    two = f"{start}{GOOD}{end}{between}{start}{GOOD}{end}"
    for required in (True, False):
        assert Trial(tokenizer, name, required=required, parallel=True).allows(two)
        assert not Trial(tokenizer, name, required=required, parallel=False).allows(two)
        assert Trial(tokenizer, name, required=required, parallel=False).allows(f"{start}{GOOD}{end}")


@pytest.mark.parametrize("name", ["hermes", "mistral-args", "granite"])
def test_a_call_may_follow_text_and_is_enforced_from_its_marker_on(tokenizer: LLTokenizer, name: str) -> None:
    trial = Trial(tokenizer, name, required=False)
    start, end, _ = ONE[name]
    assert trial.allows(f"Let me look. {start}{GOOD}{end}")
    assert not trial.allows(f"Let me look. {start}{BAD}{end}")


@pytest.mark.parametrize("required", [True, False])
def test_calls_in_xml_have_values_by_their_schemas(tokenizer: LLTokenizer, required: bool) -> None:  # noqa: FBT001
    trial = Trial(tokenizer, "qwen-coder", required=required)
    assert trial.allows(XML.format(3))
    assert not trial.allows(XML.format(12))
    assert not trial.allows(XML.format("three"))
    unit = "</parameter>\n<parameter=unit>\n{}\n</parameter>\n</function>"
    assert trial.allows(XML.format(3).replace("</parameter>\n</function>", unit.format("C")))
    assert not trial.allows(XML.format(3).replace("</parameter>\n</function>", unit.format("K")))


def test_harmony_thinks_before_it_calls_or_answers(tokenizer: LLTokenizer) -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = ONE["harmony"][0] + GOOD
    answer = "<|channel|>final<|message|>Yes."
    required, free = (Trial(tokenizer, "harmony", required=kind) for kind in (True, False))
    assert required.allows(thought + call)
    assert not required.allows(thought + answer)
    assert free.allows(thought + answer)
    assert free.allows(thought + call)


def test_there_is_nothing_to_enforce_where_calls_are_free_and_no_tool_is_strict() -> None:
    loose = Tool("search")
    for name in FORMAT_NAMES:
        chosen = choose_format(None, name=name)
        assert chosen.call_grammar([loose], parallel=True, required=False) is None
        assert chosen.call_grammar([], parallel=True, required=True) is None


def test_a_schema_that_is_not_understood_is_refused_only_of_a_strict_tool(tokenizer: LLTokenizer) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "noSuchKeyword": 1, "if": {}}}}
    lenient = choose_format(None, name="hermes").call_grammar([Tool("f", "", odd)], parallel=True, required=True)
    strict = choose_format(None, name="hermes").call_grammar([Tool("f", "", odd, True)], parallel=True, required=True)
    assert lenient is not None
    assert strict is not None
    assert not LLMatcher(tokenizer, lenient.text).is_error()
    assert LLMatcher(tokenizer, strict.text).is_error()


BARE: Final = ("generic", "llama3", "gemma", "harmony")
"""Calls that no marker tells from an answer, or whose answers are marked too."""


@pytest.mark.parametrize("name", BARE)
def test_where_calls_and_answers_look_alike_nobody_can_be_held_to_either(name: str) -> None:
    any_object = Grammar(GrammarKind.JSON_SCHEMA, "{}")
    chosen = choose_format(None, name=name, controls=IDS)
    assert chosen.call_or_answer_grammar((WEATHER,), any_object, parallel=True) is None


@pytest.mark.parametrize("name", [name for name in FORMAT_NAMES if name not in BARE])
def test_calls_and_an_answer_that_fits_a_schema_are_the_only_ways(tokenizer: LLTokenizer, name: str) -> None:
    chosen = choose_format(None, name=name, controls=IDS)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({**schema, "additionalProperties": False}))
    grammar = chosen.call_or_answer_grammar((WEATHER,), wanted, parallel=True)
    assert grammar is not None
    trial = Trial(tokenizer, name, required=True, text=grammar.text)
    if name in ONE:
        start, end, _ = ONE[name]
        good, bad = start + GOOD + end, start + BAD + end
    else:
        good, bad = XML.format(3), XML.format(12)
    for text in (good, '{"a": 1}'):
        assert trial.allows(text)
    for text in (bad, '{"a": "x"}', "Hello", '{"a": 1} and more', "text " + good):
        assert not trial.allows(text)
    assert calls(parsed(trial.format, '{"a": 1}', tools=(WEATHER,))) == []


def test_what_is_no_schema_of_an_answer_beside_calls_is_refused() -> None:
    hermes = choose_format(None, name="hermes", controls=IDS)
    assert hermes.call_or_answer_grammar((WEATHER,), Grammar(GrammarKind.REGEX, "a"), parallel=True) is None
    for text in ("[]", "{", "[" * 100_000):
        with pytest.raises(InvalidRequestError, match="schema"):
            hermes.call_or_answer_grammar((WEATHER,), Grammar(GrammarKind.JSON_SCHEMA, text), parallel=True)
