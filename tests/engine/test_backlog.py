"""Slow readers: what they have not read is bounded, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from forerun import FinishReason, SamplingParams
from forerun.compose import Engine
from forerun.core.request import OutputDelta
from forerun.engine.backlog import MOST_UNREAD, Backlog
from forerun.testing import FakeRunner
from tests.engine.processes import front_end_parts, remote_worker
from tests.engine.support import fake_async_engine, fake_engine

LONG = SamplingParams(max_tokens=3000, ignore_eos=True)
SHORT = SamplingParams(max_tokens=10, ignore_eos=True)


def test_a_request_is_paused_once_too_much_is_unread_and_resumed_once_half_of_that_is_read() -> None:
    told: list[tuple[str, Sequence[str]]] = []
    backlog = Backlog(lambda ids: told.append(("pause", ids)), lambda ids: told.append(("resume", ids)), most=4)
    backlog.watch(["a", "b"])
    one = OutputDelta("a", "x", (1,))
    for _ in range(5):
        backlog.add([one, OutputDelta("other", "x", (1,))])
    assert told == [("pause", ["a"])]
    backlog.add([one])
    for _ in range(3):
        backlog.take([one])
    assert told == [("pause", ["a"])], "three of six are unread"
    backlog.take([one])
    assert told == [("pause", ["a"]), ("resume", ["a"])]


def test_the_last_delta_ends_the_count() -> None:
    told: list[Sequence[str]] = []
    backlog = Backlog(told.append, told.append, most=2)
    backlog.watch(["a"])
    last = OutputDelta("a", "xxx", (1, 1, 1), finish_reason=FinishReason.LENGTH)
    backlog.add([last])
    backlog.take([last])
    assert told == []
    assert repr(backlog) == "Backlog(0 requests, 0 paused)"


def test_a_stream_that_nobody_reads_stops_and_others_go_on() -> None:
    with fake_engine(FakeRunner(4000), n_ctx=4000) as engine:
        slow = engine.stream("ab", LONG)
        first = next(slow)
        while engine.stats().paused == 0:
            (whole,) = engine.generate("ba", SHORT)
            assert len(whole.token_ids) == 10
        unread = engine.stats().used_cells
        (whole,) = engine.generate("ba", SHORT)
        assert len(whole.token_ids) == 10
        assert unread < 2 * MOST_UNREAD
        tokens = [*first.token_ids, *(token for piece in slow for token in piece.token_ids)]
        (whole,) = engine.generate("ab", LONG)
        assert tokens == list(whole.token_ids)


def test_what_is_not_a_stream_is_never_paused() -> None:
    with fake_engine(FakeRunner(4000), n_ctx=4000) as engine:
        outputs = engine.generate(["ab", "ba"], [SHORT, SamplingParams(max_tokens=2000, ignore_eos=True)])
        next(outputs)
        while engine.stats().running:
            assert engine.stats().paused == 0
        assert len(next(outputs).token_ids) == 2000


def test_closing_a_paused_stream_ends_its_request() -> None:
    with fake_engine(FakeRunner(4000), n_ctx=4000) as engine:
        slow = engine.stream("ab", LONG)
        next(slow)
        while engine.stats().paused == 0:
            pass
        slow.close()
        gc.collect()
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.paused) == (0, 0, 0)


def test_an_async_stream_that_nobody_reads_stops_and_goes_on() -> None:
    async def main() -> None:
        async with fake_async_engine(FakeRunner(4000), n_ctx=4000) as engine:
            slow = engine.stream("ab", LONG)
            first = await anext(slow)
            while (await engine.stats()).paused == 0:
                pass
            assert (await engine.stats()).used_cells < 2 * MOST_UNREAD
            count = len(first.token_ids)
            async for piece in slow:
                count += len(piece.token_ids)
            assert count == LONG.max_tokens

    asyncio.run(main())


def test_an_engine_in_a_process_of_its_own_pauses_too() -> None:
    with Engine(front_end_parts(remote_worker())) as engine:
        slow = engine.stream("hello", LONG)
        tokens = list(next(slow).token_ids)
        while engine.stats().paused == 0:
            (whole,) = engine.generate("others go on", SHORT)
            assert len(whole.token_ids) == 10
        tokens += [token for piece in slow for token in piece.token_ids]
        assert len(tokens) == LONG.max_tokens
