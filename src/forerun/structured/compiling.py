"""From a grammar to a constraint."""

from __future__ import annotations

import json
import threading

from llguidance import LLMatcher

from forerun.core.grammar import Grammar, GrammarKind
from forerun.engine.parts import TextVocabulary
from forerun.errors import EngineClosedError, InvalidRequestError
from forerun.structured.constraint import GrammarConstraint
from forerun.structured.gbnf import gbnf_to_lark
from forerun.structured.lark import checked_lark
from forerun.structured.limits import MAX_MARKER, PARSER_LIMITS, check_depth, check_size, regex_depth
from forerun.structured.marker import Marker
from forerun.structured.schema import parsed_schema, schema_grammar
from forerun.structured.tokens import Tokens, TokenTable

_KIND_NAMES = {
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.REGEX: "pattern",
    GrammarKind.LARK: "Lark grammar",
    GrammarKind.GBNF: "GBNF grammar",
}
_BEHIND_MARKER = "start: SPACE? @body\nSPACE: /[ \\t\\r\\n]{1,8}/"
"""JSON behind a marker: models put empty lines there, and JSON may begin with space."""
_SHOWN = 400
"""Characters of what llguidance says is wrong."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary, which is read when the first one comes. Any thread."""

    def __init__(self, vocabulary: TextVocabulary) -> None:
        self._vocabulary: TextVocabulary | None = vocabulary
        self._tokens: Tokens | None = None
        self._reading = threading.Lock()

    def __call__(self, grammar: Grammar) -> GrammarConstraint:
        """A constraint for one request. Milliseconds for what people write, seconds for what is written to take long.
        Raises InvalidRequestError, EngineClosedError."""
        return compiled(grammar, self._read())

    def _read(self) -> Tokens:
        with self._reading:
            if self._vocabulary is None:
                raise EngineClosedError("the engine was closed")
            if self._tokens is None:
                self._tokens = Tokens(_table(self._vocabulary), self._vocabulary)
            return self._tokens

    def close(self) -> None:
        """Do not touch the vocabulary any more."""
        with self._reading:
            self._vocabulary = None
            if self._tokens is not None:
                self._tokens.close()


def _table(vocabulary: TextVocabulary) -> TokenTable:
    if not vocabulary.end_tokens:
        raise InvalidRequestError("grammar", "the model has no token that ends an answer, so no grammar could end one")
    return TokenTable.of(vocabulary)


def compiled(grammar: Grammar, tokens: Tokens) -> GrammarConstraint:
    """A constraint for one request. Raises InvalidRequestError."""
    source = grammar_source(grammar, tokens.table)
    matcher = LLMatcher(tokens.tokenizer, source, log_level=0, limits=PARSER_LIMITS)
    _check(matcher, grammar)
    bits = matcher.compute_bitmask()
    if "NoExtension" in matcher.get_error():
        raise InvalidRequestError("grammar", f"no text fits the {_KIND_NAMES[grammar.kind]}")
    _check(matcher, grammar)
    if not matcher.is_accepting() and not any(bits):
        raise InvalidRequestError("grammar", f"no text fits the {_KIND_NAMES[grammar.kind]}")
    marker = Marker(grammar.after, tokens.table) if grammar.after else None
    return GrammarConstraint(matcher, tokens, marker)


def grammar_source(grammar: Grammar, table: TokenTable) -> str:
    """What llguidance compiles. Raises InvalidRequestError for what is too large, or would be ignored."""
    text = grammar.text
    check_size(text, _KIND_NAMES[grammar.kind])
    if len(grammar.after) > MAX_MARKER:
        raise InvalidRequestError("grammar", f"starts behind {len(grammar.after)} characters; at most {MAX_MARKER}")
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            body = schema_grammar(parsed_schema(text))
            grammars = [{"lark_grammar": _BEHIND_MARKER}, {**body, "name": "body"}] if grammar.after else [body]
            return json.dumps({"grammars": grammars})
        case GrammarKind.REGEX:
            check_depth(regex_depth(text), "pattern")
            return LLMatcher.grammar_from_regex(text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(checked_lark(text, table))
        case GrammarKind.GBNF:
            return LLMatcher.grammar_from_lark(gbnf_to_lark(text, table))


def _check(matcher: LLMatcher, grammar: Grammar) -> None:
    if matcher.is_error():
        reason = " ".join(matcher.get_error().split())[:_SHOWN]
        raise InvalidRequestError("grammar", f"the {_KIND_NAMES[grammar.kind]} cannot be compiled: {reason}")
