"""Cases A7 and E5 through HTTP: what cannot be compiled is a 400 in time, never free text, and others go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from forerun.structured.checking import GrammarChecker
from forerun.structured.compiling import GrammarCompiler
from forerun.structured.tokens import TokenTable
from forerun.testing.served import ByteVocabulary, served_parts
from tests.server.support import HELLO_BODY, ServerUnderTest, events_of, listening, served
from tests.structured.test_checking import HOSTILE

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(lambda: TokenTable.of(ByteVocabulary()), processes=1)
    yield made
    made.close()


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}


@asynccontextmanager
async def enforcing(checker: GrammarChecker) -> AsyncIterator[ServerUnderTest]:
    """A server whose engine enforces grammars."""
    parts = replace(served_parts(), constrain=GrammarCompiler(ByteVocabulary()))
    async with served(parts, grammars=checker) as server:
        yield server


UNCOMPILABLE: dict[str, dict[str, Any]] = {
    "a bad pattern": {"response_format": format_of({"type": "string", "pattern": "(a"})},
    "a bad regex": {"grammar": {"type": "regex", "value": "(a"}},
    "broken GBNF": {"grammar": "root ::= ("},
    "broken Lark": {"grammar": {"type": "lark", "value": "start: ("}},
    "an unknown keyword": {"response_format": format_of({"type": "string", "contentFancy": 1})},
    "a $ref to nowhere": {"response_format": format_of({"$ref": "#/$defs/none"})},
}


@pytest.mark.parametrize("name", UNCOMPILABLE)
@pytest.mark.parametrize("stream", [False, True])
def test_case_a7_what_cannot_be_compiled_is_a_400(name: str, checker: GrammarChecker, *, stream: bool) -> None:
    async def main() -> None:
        async with enforcing(checker) as server:
            response = await server.chat(stream=stream, **UNCOMPILABLE[name])
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"].split(".")[0] in ("response_format", "grammar")

    asyncio.run(main())


@pytest.mark.parametrize("length", [1999, 2000, 2001, 65536])
@pytest.mark.parametrize("nested", [False, True])
def test_case_a7_a_long_text_is_enforced_or_refused(length: int, checker: GrammarChecker, *, nested: bool) -> None:
    schema: dict[str, Any] = {"type": "string", "maxLength": length, "minLength": 1}
    if nested:
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}

    async def main() -> None:
        async with enforcing(checker) as server:
            response = await server.chat(response_format=format_of(schema), max_tokens=40)
            assert response.status_code in (200, 400), response.text
            if response.status_code == 200:
                content = response.json()["choices"][0]["message"]["content"]
                assert content.startswith('{"a"' if nested else '"')

    asyncio.run(main())


@pytest.mark.parametrize("name", HOSTILE)
def test_case_e5_a_hostile_grammar_disturbs_nobody_else(name: str, checker: GrammarChecker) -> None:
    hostile = HOSTILE[name]
    body: dict[str, Any] = {**HELLO_BODY, "grammar": {"type": hostile.kind, "value": hostile.text}}
    parts = replace(served_parts(seconds_per_step=0.01), constrain=GrammarCompiler(ByteVocabulary()))
    with listening(parts, grammars=checker) as server, httpx.Client(timeout=30) as client:
        endless = {**HELLO_BODY, "max_tokens": 20_000, "ignore_eos": True, "stream": True}
        with client.stream("POST", server.url + CHAT, json=endless) as other:
            lines = other.iter_lines()
            next(lines)
            started = time.monotonic()
            response = httpx.post(server.url + CHAT, json=body, timeout=30)
            taken = time.monotonic() - started
            assert next(line for line in lines if line).startswith("data: {")
        assert response.status_code in (200, 400), response.text
        assert taken < 4.0  # twice what it may: these machines are busy
        assert client.get(server.url + "/health").status_code == 200


def test_case_e5_nested_arrays_of_tools_are_a_400() -> None:
    nested = "[" * 3000 + "]" * 3000
    content = json.dumps({**HELLO_BODY, "tools": "HERE"}).replace('"HERE"', nested)

    async def main() -> None:
        async with served() as server:
            response = await server.client.post(CHAT, content=content)
            assert response.status_code == 400
            assert events_of(response.text) == []

    asyncio.run(main())
