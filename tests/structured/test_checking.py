"""Grammars are compiled where they can do no harm (case E5): in time, in processes that may die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from forerun.core.grammar import Grammar
from forerun.errors import InvalidRequestError, OverloadedError
from forerun.structured import checking
from forerun.structured.checking import GrammarChecker
from tests.structured.support import TABLE, gbnf, lark, regex, schema
from tests.structured.test_compiling import BEYOND


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(lambda: TABLE, processes=1)
    made.check(regex("warm"))
    yield made
    made.close()


def test_good_grammars_pass_and_bad_ones_are_refused_with_the_field_s_name(checker: GrammarChecker) -> None:
    checker.check(schema('{"type": "object"}', after="</think>"))
    for _ in range(2):  # the second time from memory
        with pytest.raises(InvalidRequestError, match=r"^response_format: the pattern cannot be compiled") as caught:
            checker.check(regex("(a"), "response_format")
        assert caught.value.field == "response_format"


HOSTILE: dict[str, Grammar] = {
    **{name: grammar for name, (grammar, _) in BEYOND.items()},
    "left recursion": lark('start: start start | "b" |'),
    "left recursion in GBNF": gbnf('root ::= root root | "b" | root "a"'),
    "huge repetitions": lark('start: (("a"|"b"|/c/){0,10000} ("a"|/d/){0,10000}){0,10000}'),
    "huge repetitions in a pattern": regex("(((a|b|[c-z]*x){1,1000}c){1,1000}d){1,1000}"),
    "huge repetitions in GBNF": gbnf('root ::= (("a" | [bc]){1,99999} root?){1,99999}'),
    "many properties": schema(json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(4000)}})),
    "intersections": schema(
        json.dumps({"allOf": [{"anyOf": [{"properties": {f"p{j}{i}": {}}} for i in range(10)]} for j in range(7)]})
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_case_e5_whatever_comes_is_decided_within_two_seconds(name: str, checker: GrammarChecker) -> None:
    started = time.monotonic()
    with suppress(InvalidRequestError):
        checker.check(HOSTILE[name])
    assert time.monotonic() - started < 4.0  # twice that: these machines are busy


def test_a_child_that_dies_is_replaced_and_its_grammar_refused(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What plain limits let through may still kill the compiler."""
    (child,) = checker._alive
    monkeypatch.setattr(child, "send", lambda *_: os.kill(child._process.pid, signal.SIGKILL))
    with pytest.raises(InvalidRequestError, match="exhausts the compiler's stack or memory"):
        checker.check(regex("that kills it"))
    checker.check(regex("the next one"))


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_is_served() -> None:
    checker = GrammarChecker(lambda: TABLE, processes=1, seconds=0.0)
    try:
        with pytest.raises(InvalidRequestError, match="takes longer than 0 s to compile"):
            checker.check(schema(json.dumps({"properties": {f"p{i}": {} for i in range(900)}})))
        checker._seconds = 10.0
        checker.check(regex("a"))
    finally:
        checker.close()


def test_an_event_loop_goes_on_while_a_grammar_is_checked(checker: GrammarChecker) -> None:
    async def both() -> int:
        ticks = 0
        check = asyncio.ensure_future(checker.check_soon(HOSTILE["many properties"], "tools"))
        while not check.done():
            await asyncio.sleep(0.001)
            ticks += 1
        assert isinstance(check.exception(), InvalidRequestError | None)
        return ticks

    assert asyncio.run(both()) > 1


def test_an_answer_that_would_run_into_a_limit_at_once_is_refused_before_it_begins(checker: GrammarChecker) -> None:
    properties = {f"p{index}": {"type": "string"} for index in range(900)}
    wide = {"type": "object", "properties": properties, "additionalProperties": False}
    with pytest.raises(InvalidRequestError, match="would run into a limit"):
        checker.check(schema(json.dumps(wide)))


def test_a_process_is_there_once_it_is_needed_and_a_second_one_only_beside_a_busy_one() -> None:
    checker = GrammarChecker(lambda: TABLE, processes=2)
    try:
        assert not checker._alive
        for number in range(3):
            checker.check(regex(f"a{number}"))
        assert len(checker._alive) == 1
        held = checker._free_child()  # as a check holds it
        checker.check(regex("b"))
        assert len(checker._alive) == 2
        checker._give_back(held)
    finally:
        checker.close()


def test_a_process_that_cannot_be_started_is_tried_again_by_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker(lambda: TABLE, processes=1)
    try:
        with monkeypatch.context() as full:
            full.setattr(checking, "_PATIENCE", 0.2)
            full.setattr(checking, "_Child", lambda: (_ for _ in ()).throw(OSError("no memory")))
            with pytest.raises(OverloadedError, match="no process is free"):
                checker.check(regex("a"))
        checker.check(regex("a"))
    finally:
        checker.close()
