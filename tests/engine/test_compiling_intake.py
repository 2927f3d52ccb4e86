"""Grammars are compiled between a front end's commands and the engine thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forerun.core.grammar import Grammar, GrammarKind, TokenConstraint
from forerun.core.prompt import PromptLayout
from forerun.core.request import FinishReason, OutputDelta, Request, SamplingParams
from forerun.engine.compiling_intake import CompilingIntake
from forerun.engine.loop import EngineLoop
from forerun.engine.worker import EngineWorker, QueueSink
from forerun.errors import EngineClosedError, InvalidRequestError
from tests.engine.support import fake_parts

GRAMMAR = Grammar(GrammarKind.REGEX, "a+")


def request(name: str, *, grammar: Grammar | None = None) -> Request:
    params = SamplingParams(max_tokens=2, ignore_eos=True, grammar=grammar)
    return Request(id=name, prompt=PromptLayout.of_text([0]), params=params)


@contextmanager
def taking_in(constrain: Callable[[Grammar], TokenConstraint] | None) -> Iterator[CompilingIntake]:
    parts = fake_parts()
    worker = EngineWorker(EngineLoop(parts.scheduler, parts.runner, parts.clock), lambda _: None)
    intake = CompilingIntake(worker, constrain)
    try:
        yield intake
    finally:
        intake.close()
        worker.close()


def last(sink: QueueSink) -> OutputDelta:
    while True:
        for delta in sink.wait():
            if delta.finish_reason is not None:
                return delta


class Compiler:
    """Compiles when it is told to, and then refuses."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.is_at_work = threading.Event()

    def __call__(self, grammar: Grammar) -> TokenConstraint:
        self.is_at_work.set()
        assert self.may_end.wait(20)
        raise InvalidRequestError("grammar", f"{grammar.text} is too odd")


def test_requests_without_a_grammar_do_not_wait_for_those_that_are_compiled() -> None:
    compiler = Compiler()
    with taking_in(compiler) as intake:
        slow, quick = QueueSink(), QueueSink()
        intake.submit([request("slow", grammar=GRAMMAR)], slow)
        assert compiler.is_at_work.wait(20)
        intake.submit([request("quick")], quick)
        assert last(quick).finish_reason is FinishReason.LENGTH
        compiler.may_end.set()
        error = last(slow).error
        assert isinstance(error, InvalidRequestError)
        assert error.field == "grammar"


def test_an_abort_that_overtakes_a_grammar_ends_the_request_at_once() -> None:
    compiler = Compiler()
    with taking_in(compiler) as intake:
        sink = QueueSink()
        intake.submit([request("a", grammar=GRAMMAR)], sink)
        assert compiler.is_at_work.wait(20)
        intake.abort(["a"])
        assert [delta.finish_reason for delta in sink.wait()] == [FinishReason.ABORT]
        compiler.may_end.set()
    assert sink._steps.empty(), "nothing comes after the last delta"


def test_closing_ends_what_is_being_compiled() -> None:
    compiler = Compiler()
    sink = QueueSink()
    with taking_in(compiler) as intake:
        intake.submit([request("a", grammar=GRAMMAR)], sink)
        assert compiler.is_at_work.wait(20)
    assert isinstance(last(sink).error, EngineClosedError)
    compiler.may_end.set()


def test_an_engine_that_enforces_no_grammars_refuses_them_and_a_broken_compiler_fails_one_request() -> None:
    def broken(grammar: Grammar) -> TokenConstraint:
        raise ZeroDivisionError(grammar)

    for constrain, message in [(None, "grammar: this engine enforces none"), (broken, "ZeroDivisionError")]:
        with taking_in(constrain) as intake:
            sink = QueueSink()
            intake.submit([request("a", grammar=GRAMMAR)], sink)
            assert message in str(last(sink).error)
            intake.submit([request("b")], sink)
            assert last(sink).finish_reason is FinishReason.LENGTH
