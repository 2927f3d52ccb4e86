"""Blocking engine: what callers give, what they get, and how they stop."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from forerun import (
    Engine,
    EngineClosedError,
    FinishReason,
    InvalidRequestError,
    PromptLayout,
    PromptSegment,
    SamplingParams,
)
from forerun.core.request import OutputDelta, Request, Usage
from forerun.core.scheduler import Scheduler
from forerun.core.step import FailureKind, StepFailure
from forerun.engine.loop import EngineLoop
from forerun.engine.worker import EngineWorker, QueueSink
from forerun.testing import FakeRunner, naive_answer
from tests.engine.support import (
    BreakingRunner,
    HeldRunner,
    SpellingVocabulary,
    TurnTemplate,
    fake_engine,
    fake_parts,
    tokens_of,
)

ENDLESS = SamplingParams(ignore_eos=True)
TEN = SamplingParams(max_tokens=10, ignore_eos=True, seed=7)


def oracle(text: str, params: SamplingParams, n_ctx: int = 256) -> str:
    return naive_answer(PromptLayout.of_text(tokens_of(text)), params, SpellingVocabulary(), n_ctx).text


def assert_idle(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_every_prompt_of_a_list_gets_the_answer_it_would_get_alone() -> None:
    prompts = ["a", "ab", "abba", "ba", "bbbb", "é", "éa", "abé", "b", "aab"]
    with fake_engine() as engine:
        outputs = {output.index: output for output in engine.generate(prompts, TEN)}
        assert_idle(engine)
    assert [outputs[index].text for index in range(len(prompts))] == [oracle(prompt, TEN) for prompt in prompts]
    assert len({output.request_id for output in outputs.values()}) == len(prompts)


@pytest.mark.parametrize(
    "prompt",
    ["abba", [0, 1, 1, 0], (0, 1, 1, 0), np.array([0, 1, 1, 0], np.int32), PromptLayout.of_text([0, 1, 1, 0])],
    ids=["text", "list", "tuple", "array", "layout"],
)
def test_a_prompt_may_be_text_token_ids_or_a_layout(prompt: Any) -> None:
    with fake_engine() as engine:
        for prompts in (prompt, [prompt]):
            (output,) = engine.generate(prompts, TEN)
            assert output.text == oracle("abba", TEN)


def test_usage_counts_prompt_output_and_cached_tokens() -> None:
    with fake_engine() as engine:
        (first,) = engine.generate("abba" * 8, TEN)
        (second,) = engine.generate("abba" * 8, TEN)
    assert first.usage is not None
    assert second.usage is not None
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, first.usage.output_tokens) == (32, 0, 10)
    assert (second.usage.prompt_tokens, second.usage.cached_tokens) == (32, 31)
    assert second.token_ids == first.token_ids


def test_parameters_may_differ_from_prompt_to_prompt() -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 2, 3)]
    with fake_engine() as engine:
        lengths = {output.index: len(output.token_ids) for output in engine.generate(["a", "b", "a"], params)}
    assert lengths == {0: 1, 1: 2, 2: 3}


def test_outputs_come_as_each_finishes_not_in_order_of_the_prompts() -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (40, 2)]
    with fake_engine() as engine:
        assert [output.index for output in engine.generate(["a", "b"], params)] == [1, 0]


def test_streamed_pieces_join_to_the_generated_answer() -> None:
    with fake_engine() as engine:
        *pieces, last = engine.stream("abé", TEN)
        (whole,) = engine.generate("abé", TEN)
    assert "".join(piece.text for piece in (*pieces, last)) == whole.text
    assert sum((piece.token_ids for piece in (*pieces, last)), ()) == whole.token_ids
    assert all(piece.finish_reason is None and piece.usage is None for piece in pieces)
    assert len(pieces) >= 8
    assert last.finish_reason is FinishReason.LENGTH
    assert last.usage is not None


def test_logprobs_come_one_a_token_where_asked_for() -> None:
    with fake_engine() as engine:
        (without,) = engine.generate("ab", TEN)
        (with_them,) = engine.generate("ab", SamplingParams(max_tokens=4, ignore_eos=True, logprobs=2))
    assert without.logprobs is None
    assert with_them.logprobs is not None
    assert [entry.token for entry in with_them.logprobs] == list(with_them.token_ids)
    assert all(len(entry.top) == 2 for entry in with_them.logprobs)


def test_a_seed_is_drawn_for_each_request_that_brings_none() -> None:
    hot = SamplingParams(temperature=5, max_tokens=40, ignore_eos=True)
    fixed = SamplingParams(temperature=5, max_tokens=40, ignore_eos=True, seed=3)
    with fake_engine() as engine:
        assert len({output.text for output in engine.generate(["ab"] * 4, hot)}) > 1
        assert len({output.text for output in engine.generate(["ab"] * 4, fixed)}) == 1


def test_chat_goes_through_the_template() -> None:
    with fake_engine(template=TurnTemplate()) as engine:
        (output,) = engine.chat([{"role": "user", "content": "ab"}], TEN)
        assert output.text == oracle("ab$", TEN)
        outputs = engine.chat([[{"role": "user", "content": text}] for text in ("a", "b")], TEN)
        assert {output.index: output.text for output in outputs} == {0: oracle("a$", TEN), 1: oracle("b$", TEN)}


def test_text_is_what_a_user_says_unless_it_is_raw() -> None:
    with fake_engine(template=TurnTemplate()) as engine:
        for generate in (engine.generate, engine.stream):
            assert "".join(output.text for output in generate("ab", TEN)) == oracle("ab$", TEN)
            assert "".join(output.text for output in generate("ab", TEN, raw=True)) == oracle("ab", TEN)
            assert "".join(output.text for output in generate(tokens_of("ab"), TEN)) == oracle("ab", TEN)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", ["empty"]),
        ([0] * 300, ["300", "256"]),
        ([0, 99], ["99", "5"]),
        ([0, -1], ["-1"]),
        ([0, 2**40], ["token ids"]),
        ("a\udc80", ["Unicode", "1"]),
        (1.5, ["token ids", "float"]),
    ],
    ids=["empty", "too long", "unknown id", "negative id", "huge id", "lone surrogate", "number"],
)
def test_a_bad_prompt_is_refused_and_the_engine_goes_on(prompt: Any, words: list[str]) -> None:
    with fake_engine() as engine:
        with pytest.raises(InvalidRequestError) as refusal:
            next(engine.generate([prompt], TEN))
        assert refusal.value.field == "prompt"
        assert all(word in str(refusal.value) for word in words)
        assert_idle(engine)
        assert [output.text for output in engine.generate("ab", TEN)] == [oracle("ab", TEN)]


def test_among_several_prompts_only_the_bad_ones_fail() -> None:
    prompts: list[Any] = ["ab", "", "ba", [0] * 300]
    with fake_engine() as engine:
        outputs = {output.index: output for output in engine.generate(prompts, TEN)}
        assert_idle(engine)
    assert isinstance(outputs[1].error, InvalidRequestError)
    assert isinstance(outputs[3].error, InvalidRequestError)
    assert outputs[3].finish_reason is FinishReason.ERROR
    assert (outputs[0].text, outputs[2].text) == (oracle("ab", TEN), oracle("ba", TEN))


def test_an_unusable_conversation_fails_alone() -> None:
    conversations = [[{"role": "user", "content": "ab"}], [{"role": "user"}]]
    with fake_engine(template=TurnTemplate()) as engine:
        outputs = {output.index: output for output in engine.chat(conversations, TEN)}
    assert outputs[0].text == oracle("ab$", TEN)
    assert isinstance(outputs[1].error, InvalidRequestError)


@pytest.mark.parametrize(
    ("prompts", "params", "field"),
    [(["a", "b"], [TEN], "params"), (["a"], ["hot"], "params"), (5, TEN, "prompts"), (b"ab", TEN, "prompts")],
)
def test_a_call_that_makes_no_sense_is_refused_at_once(prompts: Any, params: Any, field: str) -> None:
    with fake_engine() as engine:
        with pytest.raises(InvalidRequestError) as refusal:
            engine.generate(prompts, params)
        assert refusal.value.field == field


def test_a_prompt_with_media_is_refused_before_it_fails_a_step_for_others() -> None:
    image = PromptLayout([PromptSegment.text([0]), PromptSegment.media("image-a", 4, 1)])
    with fake_engine() as engine:
        refused, answer = sorted(
            engine.generate([image, PromptLayout.of_text(tokens_of("ab"))], TEN), key=lambda output: output.index
        )
        assert isinstance(refused.error, InvalidRequestError)
        assert "media" in str(refused.error)
        assert answer.text == oracle("ab", TEN)


def test_no_prompts_give_no_outputs() -> None:
    with fake_engine() as engine:
        assert list(engine.generate([], TEN)) == []


# --- stopping early -----------------------------------------------------------------------------------------------


def test_closing_the_iterator_cancels_the_request() -> None:
    with fake_engine(n_ctx=100_000, runner=FakeRunner(100_000)) as engine:
        stream = engine.stream("ab", ENDLESS)
        next(stream)
        stream.close()
        assert_idle(engine)
        assert list(stream) == []


def test_dropping_the_iterator_cancels_the_request() -> None:
    with fake_engine(n_ctx=100_000, runner=FakeRunner(100_000)) as engine:
        stream = engine.stream("ab", ENDLESS)
        next(stream)
        del stream
        gc.collect()
        assert_idle(engine)


def test_leaving_a_with_block_cancels_what_is_still_open() -> None:
    with fake_engine(n_ctx=100_000, runner=FakeRunner(100_000)) as engine:
        with engine.generate(["a", "b"], [TEN, ENDLESS]) as outputs:
            assert next(outputs).index == 0
        assert_idle(engine)


def test_closing_never_waits_for_a_step() -> None:
    runner = HeldRunner(256)
    with fake_engine(runner) as engine:
        stream = engine.stream("ab", ENDLESS)
        assert runner.is_stepping.wait(5)
        stream.close()
        runner.may_step.set()
        assert_idle(engine)
    assert len([plan for plan in runner.plans if plan.sequence_ids()]) == 1


def test_an_aborted_request_ends_with_reason_abort() -> None:
    with fake_engine(n_ctx=100_000, runner=FakeRunner(100_000)) as engine:
        stream = engine.stream("ab", ENDLESS)
        first = next(stream)
        engine.abort([first.request_id, "never heard of"])
        *_, last = stream
        assert last.finish_reason is FinishReason.ABORT
        assert last.usage is not None


def test_nothing_of_a_finished_request_stays_in_the_worker() -> None:
    with fake_engine() as engine:
        for _ in range(50):
            list(engine.generate(["a", "", "ba"], TEN))
            engine.stream("ab", ENDLESS).close()
        engine.stats()
        assert repr(engine) == "Engine(model, n_ctx 256, EngineWorker(alive, 0 open requests))"


# --- threads ------------------------------------------------------------------------------------------------------


def test_threads_share_one_engine_and_each_gets_its_own_answers() -> None:
    prompts = ["a", "ab", "abba", "ba", "bbbb", "é", "éa", "abé"]
    with fake_engine() as engine, ThreadPoolExecutor(4) as threads:

        def ask(number: int) -> list[str]:
            own = prompts[number % 8 :] + prompts[: number % 8]
            outputs = sorted(engine.generate(own, TEN), key=lambda output: output.index)
            return [output.text for output in outputs]

        for number, texts in enumerate(threads.map(ask, range(24))):
            own = prompts[number % 8 :] + prompts[: number % 8]
            assert texts == [oracle(prompt, TEN) for prompt in own]
        assert_idle(engine)


def test_requests_of_one_call_enter_the_same_step() -> None:
    runner = HeldRunner(256)
    with fake_engine(runner) as engine:
        outputs = engine.generate(["a", "b", "ab"], SamplingParams(max_tokens=1))
        runner.may_step.set()
        assert len(list(outputs)) == 3
    assert len(runner.plans[0].sequence_ids()) == 3


# --- the end ------------------------------------------------------------------------------------------------------


def test_closing_the_engine_ends_open_requests_and_frees_everything_on_its_thread() -> None:
    freed_by: list[str] = []
    runner = HeldRunner(256)
    engine = Engine(fake_parts(runner, dispose=lambda: freed_by.append(threading.current_thread().name)))
    outputs = engine.generate(["a", "b"], ENDLESS)
    assert runner.is_stepping.wait(5)
    runner.may_step.set()
    engine.close()
    assert runner.is_closed
    assert freed_by == ["forerun-engine"]
    assert not any(thread.name == "forerun-engine" for thread in threading.enumerate())
    ended = list(outputs)
    assert [type(output.error) for output in ended] == [EngineClosedError, EngineClosedError]
    assert all(output.usage is not None for output in ended)


def test_a_closed_engine_refuses_requests_and_says_why() -> None:
    engine = fake_engine()
    engine.close()
    engine.close()
    assert not engine.is_alive
    assert engine.health.reason == "the engine was closed"
    for refused in (lambda: engine.generate("ab", TEN), lambda: engine.generate([0], TEN), engine.stats):
        with pytest.raises(EngineClosedError, match="closed"):
            refused()


def test_an_engine_that_is_dropped_closes_itself() -> None:
    runner = FakeRunner(256)
    engine = fake_engine(runner)
    list(engine.generate("ab", TEN))
    del engine
    gc.collect()
    assert runner.is_closed


def test_an_iterator_keeps_its_engine_open() -> None:
    outputs = fake_engine().generate("ab", TEN)
    gc.collect()
    assert next(outputs).text == oracle("ab", TEN)


def test_when_the_thread_dies_everyone_who_waits_is_told(caplog: pytest.LogCaptureFixture) -> None:
    engine = fake_engine(BreakingRunner(256, breaks_at=3))
    outputs = list(engine.generate(["a", "b"], ENDLESS))
    assert [type(output.error) for output in outputs] == [EngineClosedError, EngineClosedError]
    assert not engine.is_alive
    assert engine.health.reason == "the engine thread died: ZeroDivisionError: a fault nobody foresaw"
    with pytest.raises(EngineClosedError, match="a fault nobody foresaw"):
        engine.generate("ab", TEN)
    (record,) = caplog.records
    assert record.exc_info is not None
    engine.close()


def test_a_single_waiting_caller_gets_the_death_as_an_exception() -> None:
    engine = fake_engine(BreakingRunner(256, breaks_at=2))
    stream = engine.stream("ab", ENDLESS)
    next(stream)
    with pytest.raises(EngineClosedError, match="ZeroDivisionError"):
        list(stream)
    engine.close()


def test_submissions_that_race_with_a_death_are_answered() -> None:
    for _ in range(20):
        engine = fake_engine(BreakingRunner(256, breaks_at=1))

        def ask(engine: Engine = engine) -> str:
            try:
                return str([output.error for output in engine.generate(["a", "b"], ENDLESS)])
            except EngineClosedError as error:
                return str(error)

        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(ask) for _ in range(8)]
            assert all("died" in answer.result(10) for answer in answers)
        engine.close()


class DeafSink:
    def deliver(self, deltas: Sequence[OutputDelta]) -> bool:
        return not deltas


def test_a_listener_that_is_gone_keeps_nobody_from_being_told_of_a_death() -> None:
    runner = HeldRunner(256)
    runner.faults = lambda _: StepFailure(FailureKind.FAILED, f"{1 / 0}")
    parts = fake_parts(runner)

    class BrokenScheduler(Scheduler):
        """As after a fault in the middle of an update."""

        def abort(self, request_id: str, now: float) -> OutputDelta | None:
            raise KeyError(request_id, now)

    disposed: list[str] = []
    scheduler = BrokenScheduler(parts.scheduler.config, parts.vocabulary)
    worker = EngineWorker(EngineLoop(scheduler, runner, parts.clock), disposed.append)
    first, second, third = (Request(id=name, prompt=PromptLayout.of_text([0]), params=TEN) for name in "abc")
    worker.submit([first, second], DeafSink())
    assert runner.is_stepping.wait(5)
    sink = QueueSink()
    worker.submit([third], sink)
    runner.may_step.set()
    (told,) = sink.wait()
    assert isinstance(told.error, EngineClosedError)
    worker.close()
    assert runner.is_closed
    assert len(disposed) == 1


def test_a_tenant_s_requests_carry_its_name() -> None:
    with Engine(fake_parts(speculation=4)) as engine:
        steps = [usage_of(engine, tenant).steps for tenant in ("a", "a", "b")]
    assert steps[1] < steps[0] == steps[2]


def usage_of(engine: Engine, tenant: str) -> Usage:
    (output,) = engine.generate("abba", SamplingParams(max_tokens=40, ignore_eos=True), tenant=tenant)
    assert output.usage is not None
    return output.usage


def test_a_tenant_is_text() -> None:
    with fake_engine() as engine, pytest.raises(InvalidRequestError, match="tenant: must be text, got 5"):
        engine.generate("ab", tenant=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deadline", "words"),
    [
        (0, "deadline: must lie between 0 and 31622400 seconds, got 0"),
        (float("nan"), "deadline: must lie between 0 and 31622400 seconds, got nan"),
        ("soon", "deadline: must be seconds from now, got 'soon'"),
        (True, "deadline: must be seconds from now, got True"),
    ],
)
def test_a_deadline_is_seconds_from_now(deadline: Any, words: str) -> None:
    with fake_engine() as engine:
        with pytest.raises(InvalidRequestError) as refusal:
            engine.generate("ab", TEN, deadline=deadline)
        assert words in str(refusal.value)
        assert next(engine.generate("ab", TEN, deadline=5)).text == oracle("ab", TEN)
