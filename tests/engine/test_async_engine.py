"""Async engine: many tasks, cancellation, event loops that come and go."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from forerun import AsyncEngine, EngineClosedError, FinishReason, InvalidRequestError, Output, SamplingParams
from forerun.testing import FakeRunner
from tests.engine.support import BreakingRunner, HeldRunner, TurnTemplate, fake_async_engine
from tests.engine.test_engine import ENDLESS, TEN, oracle

PROMPTS = ["a", "ab", "abba", "ba", "bbbb", "é", "éa", "abé"]


def endless_engine() -> AsyncEngine:
    return fake_async_engine(FakeRunner(100_000), n_ctx=100_000)


async def collect(outputs: Any) -> list[Output]:
    return [output async for output in outputs]


async def assert_idle(engine: AsyncEngine) -> None:
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert all(not sink.open_requests for sink in engine._sinks.values())


def test_many_tasks_gather_their_own_answers() -> None:
    async def main() -> None:
        async with fake_async_engine() as engine:
            answers = await asyncio.gather(*(collect(engine.generate(prompt, TEN)) for prompt in PROMPTS * 8))
            assert [answer[0].text for answer in answers] == [oracle(prompt, TEN) for prompt in PROMPTS * 8]
            await assert_idle(engine)

    asyncio.run(main())


def test_streamed_pieces_join_to_the_generated_answer() -> None:
    async def main() -> None:
        async with fake_async_engine(template=TurnTemplate()) as engine:
            pieces = await collect(engine.stream("abé", TEN, raw=True))
            assert "".join(piece.text for piece in pieces) == oracle("abé", TEN)
            assert pieces[-1].usage is not None
            (answer,) = await collect(engine.chat([{"role": "user", "content": "ab"}], TEN))
            assert answer.text == oracle("ab$", TEN)

    asyncio.run(main())


def test_cancelling_the_task_cancels_the_request() -> None:
    async def main() -> None:
        async with endless_engine() as engine:
            started = asyncio.Event()

            async def read() -> None:
                async for _ in engine.stream("ab", ENDLESS):
                    started.set()

            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await assert_idle(engine)

    asyncio.run(main())


def test_a_timeout_cancels_a_request_that_waits_for_its_first_token() -> None:
    async def main() -> None:
        runner = HeldRunner(256)
        async with fake_async_engine(runner) as engine:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(collect(engine.generate("ab", ENDLESS)), 0.05)
            runner.may_step.set()
            await assert_idle(engine)

    asyncio.run(main())


def test_closing_or_dropping_the_iterator_cancels_the_request() -> None:
    async def main() -> None:
        async with endless_engine() as engine:
            stream = engine.stream("ab", ENDLESS)
            await anext(stream)
            await stream.aclose()
            await assert_idle(engine)
            assert await collect(stream) == []
            stream = engine.stream("ab", ENDLESS)
            await anext(stream)
            del stream
            gc.collect()
            await assert_idle(engine)
            async with engine.stream("ab", ENDLESS) as stream:
                await anext(stream)
            await assert_idle(engine)

    asyncio.run(main())


def test_an_iterator_that_is_never_awaited_costs_nothing() -> None:
    async def main() -> None:
        async with fake_async_engine() as engine:
            engine.generate("ab", ENDLESS)
            await assert_idle(engine)

    asyncio.run(main())


def test_bad_prompts_fail_alone() -> None:
    async def main() -> None:
        async with fake_async_engine() as engine:
            with pytest.raises(InvalidRequestError, match="empty"):
                await collect(engine.generate("", TEN))
            outputs = {output.index: output for output in await collect(engine.generate(["", "ab"], TEN))}
            assert outputs[0].finish_reason is FinishReason.ERROR
            assert outputs[1].text == oracle("ab", TEN)
            await assert_idle(engine)

    asyncio.run(main())


def test_closing_the_engine_ends_open_requests() -> None:
    async def main() -> None:
        engine = endless_engine()
        stream = engine.stream(["a", "b"], ENDLESS)
        await anext(stream)
        await engine.close()
        errors = [output.error for output in await collect(stream) if output.error is not None]
        assert [type(error) for error in errors] == [EngineClosedError, EngineClosedError]
        with pytest.raises(EngineClosedError):
            await collect(engine.generate("ab", TEN))

    asyncio.run(main())


def test_the_death_of_the_engine_thread_reaches_every_task() -> None:
    async def main() -> None:
        engine = fake_async_engine(BreakingRunner(256, breaks_at=3))
        results = await asyncio.gather(
            *(collect(engine.generate(prompt, ENDLESS)) for prompt in PROMPTS), return_exceptions=True
        )
        assert {type(result) for result in results} == {EngineClosedError}
        assert not engine.is_alive
        await engine.close()

    asyncio.run(main())


def test_an_engine_outlives_event_loops_that_end_with_open_requests() -> None:
    engine = fake_async_engine(FakeRunner(100_000), n_ctx=100_000)
    kept: list[Any] = []

    async def leave_open() -> None:
        kept.append(engine.stream("ab", ENDLESS))
        await anext(kept[0])

    asyncio.run(leave_open())

    async def ask() -> None:
        (answer,) = await collect(engine.generate("abba", TEN))
        assert answer.text == oracle("abba", TEN)
        stats = await engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        await engine.close()

    asyncio.run(ask())


def test_one_step_wakes_the_event_loop_once_however_many_requests_it_served() -> None:
    async def main() -> None:
        wakeups = 0
        loop = asyncio.get_running_loop()
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any, **options: Any) -> Any:
            nonlocal wakeups
            wakeups += getattr(callback, "__name__", "") == "_sort"
            return call_soon_threadsafe(callback, *args, **options)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        async with fake_async_engine() as engine:
            outputs = await collect(
                engine.generate(["a", "b", "ab", "ba"], SamplingParams(max_tokens=5, ignore_eos=True))
            )
            assert len(outputs) == 4
        assert wakeups == 5

    asyncio.run(main())


def test_what_a_slow_reader_has_not_read_is_merged() -> None:
    async def main() -> None:
        params = SamplingParams(max_tokens=500, ignore_eos=True, logprobs=0)
        async with fake_async_engine(FakeRunner(1000), n_ctx=1000) as engine:
            slow = engine.stream("ab", params)
            pieces = [await anext(slow)]
            (whole,) = await collect(engine.generate("ab", params))
            assert sum(map(len, slow._mailbox._unread.values())) <= 64
            pieces += [piece async for piece in slow]
            assert "".join(piece.text for piece in pieces) == whole.text
            assert [token for piece in pieces for token in piece.token_ids] == list(whole.token_ids)
            assert sum(len(piece.logprobs or ()) for piece in pieces) == 500
            assert len(pieces) < 10
            assert pieces[-1].usage is not None

    asyncio.run(main())
