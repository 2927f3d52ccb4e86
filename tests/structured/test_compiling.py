"""What is compiled, and what is refused (case A7): never ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from forerun.core.grammar import Grammar, GrammarKind
from forerun.core.prompt import Tokens
from forerun.errors import EngineClosedError, InvalidRequestError
from forerun.structured.compiling import GrammarCompiler
from forerun.testing import FakeVocabulary
from tests.structured.support import (
    CALLS,
    END,
    TABLE,
    TOOL_CALL,
    WORD_IDS,
    bytes_of,
    constraint,
    fits,
    gbnf,
    history,
    lark,
    legal,
    regex,
    schema,
)

PERSON = """{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"], "additionalProperties": false}"""


def test_an_answer_fits_its_schema() -> None:
    assert fits(schema(PERSON), '{"name": "Bob", "age": 5}')
    assert fits(schema(PERSON), '{"name":"Bob","age":5}')
    assert not fits(schema(PERSON), '{"name": "Bob"}')
    assert not fits(schema(PERSON), '{"name": "Bob", "age": "5"}')


def test_json_is_written_on_one_line_so_that_no_answer_is_white_space_for_ever() -> None:
    assert not fits(schema(PERSON), '{\n"name": "Bob", "age": 5}')
    assert not fits(schema(PERSON), '{"name":  "Bob", "age": 5}')


def test_json_object_is_any_object() -> None:
    assert fits(schema('{"type": "object"}'), '{"a": [1, {"b": null}]}')
    assert not fits(schema('{"type": "object"}'), "[1]")


def test_a_pattern_is_the_whole_answer() -> None:
    assert fits(regex("(yes|no)[.!]?"), "yes!")
    assert not fits(regex("(yes|no)[.!]?"), "yes?")


@pytest.mark.parametrize("length", [1999, 2000, 2001, 65536])
def test_case_a7_long_strings_are_bounded_as_the_schema_says_also_nested(length: int) -> None:
    own = f'{{"type": "string", "maxLength": {length}}}'
    nested = f'{{"type": "object", "properties": {{"a": {own}}}, "required": ["a"], "additionalProperties": false}}'
    for text, before, behind in ((own, '"', '"'), (nested, '{"a": "', '"}')):
        assert fits(schema(text), before + "x" * min(length, 3000) + behind)
        assert not fits(schema(text), before + "x" * (length + 1) + behind)


REFUSED = {
    "a bad pattern": (schema('{"type": "string", "pattern": "(a"}'), "unclosed group"),
    "a bad regex": (regex("(a"), "unclosed group"),
    "a look-around": (regex("(?=a)b"), "look-around"),
    "broken GBNF": (gbnf('root ::= ("a"'), "a group is not closed"),
    "broken Lark": (lark('start: "a'), "cannot be compiled"),
    "an unknown keyword": (schema('{"maxLen": 5}'), "the keyword 'maxLen' at # is not supported"),
    "an unknown keyword inside": (schema('{"items": {"anyOf": [{}, {"foo": 1}]}}'), "'foo' at #/items/anyOf/1"),
    "an unknown keyword in a definition": (schema('{"$defs": {"a": {"foo": 1}}}'), "'foo' at #/\\$defs/a"),
    "a keyword that cannot be enforced": (schema('{"not": {"type": "string"}}'), "'not' at # is not supported"),
    "options of the compiler": (schema('{"x-guidance": {"lenient": true}}'), "'x-guidance' at #"),
    "a reference to nowhere": (schema('{"$ref": "#/nowhere"}'), "does not exist"),
    "a reference elsewhere": (schema('{"$ref": "http://x.y/z"}'), "does not fetch"),
    "an unknown format": (schema('{"type": "string", "format": "foo"}'), "Unknown format"),
    "overlapping alternatives": (schema('{"oneOf": [{"type": "string"}, {"maxLength": 3}]}'), "oneOf"),
    "what nothing fits": (schema('{"enum": []}'), "Unsatisfiable"),
    "a type that is none": (schema('{"type": "text"}'), "Invalid type"),
    "no JSON": (schema("{"), "not valid JSON"),
    "no object": (schema("[]"), "is an object, got \\[\\]"),
    "no map": (schema('{"properties": []}'), "#/properties must be an object"),
    "no schema": (schema('{"properties": {"a": 5}}'), "#/properties/a must be an object"),
    "no list": (schema('{"anyOf": 5}'), "#/anyOf must be a list"),
    "free keys that are counted": (schema('{"minProperties": 2}'), "minProperties 2"),
    "a discriminator of nothing": (schema('{"discriminator": {}}'), "has no oneOf"),
    "too long a number": (schema('{"maxLength": 1%s}' % ("0" * 40)), "cannot be read|Expected positive"),
    "a rule that is not there": (lark("start: foo"), "unknown name"),
    "a rule that leads nowhere": (lark("start: a\na: a"), "no text fits"),
    "tokens at most": (lark("start: foo\nfoo[max_tokens=3]: /a+/"), "'max_tokens' is not supported"),
    "a bad schema in Lark": (lark('start: %json {"foo": 1}'), "the keyword 'foo' at #"),
    "options of a schema in Lark": (lark('start: %json {"x-guidance": {"whitespace_flexible": true}}'), "may only be"),
    "options of a schema": (schema('{"x-guidance": {"lenient": true}}'), "the keyword 'x-guidance' at #"),
    "a broken schema in Lark": (lark('start: %json {"type": '), "not valid JSON"),
    "nothing": (lark(" "), "is empty"),
    "too much": (regex("a" * 300_000), "has 300000 characters; at most 262144"),
    "a long marker": (regex("a", after="x" * 201), "201 characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_case_a7_what_cannot_be_enforced_is_refused(name: str) -> None:
    grammar, reason = REFUSED[name]
    with pytest.raises(InvalidRequestError, match=f"^grammar: .*({reason})"):
        constraint(grammar)


def test_annotations_are_no_constraints() -> None:
    annotated = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "description": "d",
        "default": 1,
        "examples": [{"foo": 1}],
        "type": "object",
        "properties": {"title": {"enum": [{"anyOf": 5}]}, "not": {"const": {"foo": 1}}},
        "required": ["title"],
    }
    assert fits(schema(json.dumps(annotated)), '{"title": {"anyOf": 5}, "not": {"foo": 1}}')


def test_alternatives_of_a_union_may_name_what_tells_them_apart() -> None:
    kind = {"type": "object", "required": ["k"], "additionalProperties": False}
    union = {
        "oneOf": [{**kind, "properties": {"k": {"const": name}}} for name in ("a", "b")],
        "discriminator": {"propertyName": "k"},
    }
    assert fits(schema(json.dumps(union)), '{"k": "b"}')


def test_references_may_be_recursive() -> None:
    tree = '{"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}'
    assert fits(schema(tree), "[[], [[]]]")


# --- Lark ----------------------------------------------------------


def test_names_in_brackets_are_control_tokens_where_there_are_such_else_text() -> None:
    assert legal(constraint(lark("start: <tool_call>")), ()) == {TOOL_CALL}
    assert legal(constraint(lark("start: <[CALLS]>")), ()) == {CALLS}
    assert legal(constraint(lark("start: <[65]> | <[66-67]>")), ()) == {65, 66, 67}
    assert fits(lark('start: <other> "a"'), "<other>a")


def test_text_never_gives_a_control_token() -> None:
    own = constraint(lark("start: /(.|\\n)*/"))
    assert legal(own, ()) & {TOOL_CALL, CALLS} == set()
    assert END in legal(own, ())


def test_a_lenient_schema_in_lark_is_enforced_as_far_as_it_is_understood() -> None:
    """So the arguments of tools that are not strict are written."""
    lenient = {"type": "object", "properties": {"a": {"type": "integer", "$unknown": 1}}, "required": ["a"]}
    grammar = lark(f"start: %json {json.dumps({**lenient, 'x-guidance': {'lenient': True}})}")
    assert fits(grammar, '{"a": 1}')
    assert not fits(grammar, '{"a": "1"}')
    assert not fits(grammar, '{\n"a": 1}')


def test_schemas_in_lark_are_read_as_any_other() -> None:
    grammar = lark(f'start: "call: " %json {PERSON} "."')
    assert fits(grammar, 'call: {"name": "a", "age": 1}.')
    assert not fits(grammar, 'call: {\n"name": "a", "age": 1}.')


def test_a_rule_may_have_the_name_of_an_option() -> None:
    assert fits(lark('start: (stop | temperature)\nstop: "a"\ntemperature: "b"'), "b")


# --- limits ----------------------------------------------------------


def nested_schema(depth: int) -> str:
    return '{"type": "array", "items": ' * depth + "{}" + "}" * depth


BEYOND = {
    "nested groups": (lark("start: " + "(" * 60_000 + '"a"' + ")" * 60_000), "nests brackets more than 100"),
    "nested GBNF groups": (gbnf("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000), "nest more than 100 deep"),
    "a chain of rules": (
        lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "a"'),
        "has 5002 rules; at most 1000",
    ),
    "a chain of GBNF rules": (
        gbnf("root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + '\nr5000 ::= "a"'),
        "has 1001 rules; at most 1000",
    ),
    "open brackets": (regex("(" * 10_000), "nests brackets more than 100"),
    "open brackets in a pattern": (schema(json.dumps({"pattern": "(" * 10_000})), "cannot be compiled"),
    "a nested schema": (schema(nested_schema(2000)), "nests brackets more than 100"),
    "many alternatives": (
        schema(json.dumps({"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 1000})),
        "1000 alternatives",
    ),
    "many rules that begin alike": (
        lark(
            "start: "
            + " | ".join(f'"a" r{i}' for i in range(500))
            + "\n"
            + "\n".join(f'r{i}: "b" start?' for i in range(500))
        ),
        "499 alternatives outside of terminals",
    ),
    "many references": (
        schema(json.dumps({"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}})),
        "5001 different",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_case_e5_what_has_no_end_is_refused_before_it_is_compiled(name: str) -> None:
    grammar, reason = BEYOND[name]
    with pytest.raises(InvalidRequestError, match=re.compile(reason)):
        constraint(grammar)


def test_brackets_in_quotes_are_no_nesting() -> None:
    constraint(lark("start: " + " ".join(['"(["'] * 200) + " /[(]\\(/ // ((("))
    constraint(regex(r"\(" * 200 + "[(]"))
    constraint(schema(json.dumps({"enum": ["[" * 200]})))
    constraint(gbnf("root ::= " + ' "("' * 200 + " # (("))


# --- a vocabulary ----------------------------------------------------------


class Text(FakeVocabulary):
    """Bytes, and an end."""

    bos = -1
    control_tokens: Mapping[str, int] = MappingProxyType({})

    def __init__(self) -> None:
        super().__init__([*(bytes([code]) for code in range(256)), b""], end_tokens=(256,))
        self.calls = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        assert not add_special
        assert not parse_special
        self.calls += 1
        return np.array(bytes_of(text), np.int32)

    def token_text(self, token: int) -> str:
        return f"<{token}>"


def test_a_compiler_reads_its_vocabulary_once_and_not_after_it_was_closed() -> None:
    vocabulary = Text()
    compiler = GrammarCompiler(vocabulary)
    own = compiler(regex("hello"))
    assert own.forced(history(), 9) == bytes_of("hello")
    called = vocabulary.calls
    assert called
    compiler.close()
    assert own.forced(history(bytes_of("h")), 9) == bytes_of("ello")
    assert vocabulary.calls == called
    with pytest.raises(EngineClosedError):
        compiler(regex("hello"))


def test_a_model_without_an_end_cannot_be_held_to_a_grammar() -> None:
    class Endless(Text):
        end_tokens = frozenset[int]()

    with pytest.raises(InvalidRequestError, match="no token that ends an answer"):
        GrammarCompiler(Endless())(regex("a"))


def test_words_of_the_vocabulary_are_used() -> None:
    assert WORD_IDS[b'{"'] in legal(constraint(schema(PERSON)), ())
    assert TABLE.split(b'{"name": true') == [
        WORD_IDS[b'{"'],
        WORD_IDS[b"name"],
        WORD_IDS[b'": '],
        WORD_IDS[b"true"],
    ]


def test_kinds_are_named_as_values() -> None:
    assert Grammar("regex", "a") == Grammar(GrammarKind.REGEX, "a")  # type: ignore[arg-type]
