"""What is told of requests: ids, metrics, the log. Nothing of it holds content."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forerun.core.stats import SchedulerStats
from forerun.core.step import StepPlan, StepResult
from forerun.engine.health import EngineHealth, EngineState
from forerun.engine.telemetry import DraftCounts, EngineTelemetry, Telemetry
from forerun.errors import EngineClosedError
from forerun.server.engine_counts import EngineCounter
from forerun.server.metrics import ServerMetrics
from forerun.server.records import RequestRecord
from forerun.server.request_log import RequestLog
from forerun.server.settings import LogFormat, ServerSettings
from tests.server.support import MODEL, ServerUnderTest, served
from tools.metrics_doc import METRICS_PAGE, metrics_page

MARKER = "xyzzy-marker-plugh"
KEY = "sk-0123456789abcdef"
STATS = SchedulerStats(0, 0, 0, 0, 64)


async def figures(server: ServerUnderTest) -> dict[str, float]:
    """Samples by name and labels, as Prometheus writes them."""
    page = await server.client.get("/metrics")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(page.text)
    return {name_of(sample): sample.value for family in families for sample in family.samples}


def name_of(sample: Any) -> str:
    labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}" if labels else str(sample.name)


def test_a_request_is_counted_by_route_and_status_with_what_it_took() -> None:
    async def main() -> None:
        async with served() as server:
            assert (await server.chat()).status_code == 200
            assert (await server.chat(model="nobody")).status_code == 404
            told = await figures(server)
        route = "method=POST,route=/v1/chat/completions"
        assert told[f"forerun:http_requests_total{{{route},status=200}}"] == 1
        assert told[f"forerun:http_requests_total{{{route},status=404}}"] == 1
        assert told["forerun:http_errors_total{kind=model_not_found,route=/v1/chat/completions}"] == 1
        assert told["forerun:time_to_first_token_seconds_count"] == 1
        assert told["forerun:inter_token_latency_seconds_count"] == 7  # of 8 tokens
        assert told["forerun:e2e_request_latency_seconds_count"] == 1
        assert told["forerun:generation_tokens_total{model=fake,source=target}"] == 8
        assert told["forerun:request_generation_tokens_sum"] == 8
        assert told["forerun:engine_state{model=fake,state=ready}"] == 1
        assert told["forerun:http_requests_open"] == 1  # the scrape itself

    asyncio.run(main())


def test_each_choice_has_its_first_token_and_a_stream_counts_as_a_whole_answer_does() -> None:
    async def main() -> None:
        async with served() as server:
            await server.chat(n=2, stream=True)
            told = await figures(server)
        assert told["forerun:time_to_first_token_seconds_count"] == 2
        assert told["forerun:inter_token_latency_seconds_count"] == 14
        assert told["forerun:request_generation_tokens_sum"] == 16
        assert told["forerun:request_generation_tokens_count"] == 1

    asyncio.run(main())


def test_nothing_a_caller_sends_becomes_a_label() -> None:
    async def main() -> None:
        async with served() as server:
            for path in (f"/{MARKER}", f"/v1/{MARKER}/x", f"/v1/chat/completions?{MARKER}"):
                await server.client.request(MARKER, path)
                await server.client.get(path)
            await server.chat(MARKER, model=MARKER, user=MARKER)
            page = await server.client.get("/metrics", headers={"x-request-id": MARKER})
        assert MARKER not in page.text
        assert 'route="other"' in page.text

    asyncio.run(main())


def test_metrics_answer_while_the_engine_does_not_and_say_how_old_its_figures_are() -> None:
    async def main() -> None:
        asked = 0
        answers: asyncio.Queue[EngineTelemetry] = asyncio.Queue()

        async def ask() -> EngineTelemetry:
            nonlocal asked
            asked += 1
            return await answers.get()

        now = [0.0]
        counter = EngineCounter(ask, lambda: now[0])
        assert await counter.counts(0.001) is None
        assert await counter.counts(0.001) is None
        assert asked == 1  # one question at a time
        answers.put_nowait(telemetry(1.0, steps=3))
        told = await counter.counts(5.0)
        assert told is not None
        assert sum(told.telemetry.step_seconds.counts) == 3
        now[0] = 7.0
        told = await counter.counts(0.001)
        assert told is not None
        assert (sum(told.telemetry.step_seconds.counts), told.age) == (3, 7.0)

    asyncio.run(main())


def test_who_asks_at_the_same_time_is_told_the_same() -> None:
    """Found by aiperf, whose scrapes overlap."""

    async def main() -> None:
        asked = 0

        async def ask() -> EngineTelemetry:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return telemetry(1.0, steps=3)

        counter = EngineCounter(ask)
        counted = await asyncio.gather(*(counter.counts(5.0) for _ in range(3)))
        assert [sum(told.telemetry.step_seconds.counts) for told in counted if told] == [3, 3, 3]
        assert asked == 1

    asyncio.run(main())


def test_counts_go_on_where_they_were_when_the_engine_comes_back() -> None:
    async def main() -> None:
        starts: Iterator[EngineTelemetry | Exception] = iter(
            [telemetry(1.0, steps=5), telemetry(1.0, steps=7), EngineClosedError("died"), telemetry(9.0, steps=2)]
        )

        async def ask() -> EngineTelemetry:
            told = next(starts)
            if isinstance(told, Exception):
                raise told
            return told

        counter = EngineCounter(ask)
        counted = [await counter.counts(5.0) for _ in range(4)]
        assert [sum(told.telemetry.step_seconds.counts) for told in counted if told] == [5, 7, 7, 9]
        assert [told.starts for told in counted if told] == [1, 1, 1, 2]
        last = counted[-1]
        assert last is not None
        assert last.telemetry.drafts == {"ngram": DraftCounts((9, 9), (0, 9))}
        assert last.telemetry.stats.preemptions == 9
        assert last.telemetry.stats.used_cells == 2

    asyncio.run(main())


def telemetry(started: float, steps: int) -> EngineTelemetry:
    """Of an engine with so many steps behind it."""
    counting = Telemetry("draft", started)
    for _ in range(steps):
        counting.count_step(StepPlan(0.0, prefill=()), StepResult(0.0))
    told = counting.snapshot(replace(STATS, used_cells=steps, preemptions=steps))
    counts = (steps, *told.step_seconds.counts[1:])
    drafts = {"ngram": DraftCounts((steps, steps), (0, steps))}
    return replace(told, step_seconds=replace(told.step_seconds, counts=counts), drafts=drafts)


@pytest.mark.parametrize("given", ["abc-123", "0af7651916cd43dd8448eb211c80319c", "a" * 128])
def test_a_sane_request_id_is_the_callers(given: str) -> None:
    assert asyncio.run(answered_id(given)) == given


@pytest.mark.parametrize("given", ["", "a b", "a" * 129, "ä".encode().decode("latin-1"), "a;b", 'a"b'])
def test_any_other_is_replaced(given: str) -> None:
    assert re.fullmatch(r"req-[0-9a-f]{24}", asyncio.run(answered_id(given)))


async def answered_id(given: str) -> str:
    async with served() as server:
        response = await server.client.get("/metrics", headers={b"x-request-id": given.encode("latin-1")})
        return str(response.headers["x-request-id"])


def test_every_response_has_a_request_id_refusals_and_crashes_too() -> None:
    async def main() -> None:
        async with served(settings=ServerSettings(api_keys=frozenset({KEY}))) as server:
            unknown = await server.chat()
            assert unknown.status_code == 401
            server.client.headers["authorization"] = f"Bearer {KEY}"
            missing = await server.client.get("/nowhere")
            stream = await server.chat(stream=True)
            server.client._transport.app.state.metrics = None  # type: ignore[attr-defined]
            crash = await server.client.get("/metrics")
            assert crash.status_code == 500
            for response in (unknown, missing, stream, crash):
                assert response.headers["x-request-id"].startswith("req-")

    asyncio.run(main())


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.TEXT])
def test_the_log_tells_what_a_request_took_and_never_what_it_said(
    caplog: pytest.LogCaptureFixture, form: LogFormat
) -> None:
    settings = ServerSettings(api_keys=frozenset({KEY}), log_format=form)

    async def main() -> str:
        async with served(settings=settings) as server:
            server.client.headers["authorization"] = f"Bearer {KEY}"
            answer = await server.chat(MARKER, max_tokens=20, user=MARKER)
            await server.chat(MARKER, temperature=MARKER)
            await server.client.get(f"/{MARKER}?{MARKER}")
            return str(answer.json()["choices"][0]["message"]["content"])

    caplog.set_level(logging.DEBUG)
    content = asyncio.run(main())
    lines = [record.message for record in caplog.records if record.name == "forerun.requests"]
    assert len(lines) == 3
    assert content.strip()
    for forbidden in (MARKER, KEY, content):
        assert forbidden not in "\n".join(lines)


def test_a_line_of_the_log_has_the_request_in_numbers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forerun.requests")

    async def main() -> None:
        async with served(settings=ServerSettings(api_keys=frozenset({KEY}))) as server:
            server.client.headers.update({"authorization": f"Bearer {KEY}", "x-request-id": "mine"})
            await server.chat(n=2)
            await server.chat(max_tokens=-1)
            await server.client.get("/metrics")

    asyncio.run(main())
    served_line, refused = (json.loads(record.message) for record in caplog.records)
    assert served_line["request_id"] == "mine"
    assert (served_line["route"], served_line["status"], served_line["stream"]) == ("/v1/chat/completions", 200, False)
    assert re.fullmatch("key-[0-9a-f]{16}", served_line["tenant"])
    assert served_line["output_tokens"] == 16
    assert 0 <= served_line["cached_tokens"] < served_line["prompt_tokens"]
    assert served_line["finish_reason"] == "length"
    assert 0 < served_line["ttft_ms"] <= served_line["total_ms"]
    assert (refused["status"], refused["error"]) == (400, "invalid_value")
    assert "prompt_tokens" not in refused


def test_probes_of_a_server_that_loads_or_is_ready_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forerun.requests")

    async def main() -> None:
        async with served() as server:
            assert (await server.client.get("/health")).status_code == 200
            (entry,) = server.backend.models.entries
            opened, entry.opened = entry.opened, None
            entry.loading(EngineHealth(EngineState.LOADING))
            assert (await server.client.get("/health")).status_code == 503
            assert caplog.records == []
            entry.opened = opened
            await server.chat()  # what wants an answer is told
            assert len(caplog.records) == 1

    asyncio.run(main())


def test_a_request_whose_client_leaves_is_told_as_aborted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forerun.requests")
    record = RequestRecord(
        id="r", method="POST", arrival=0.0, observers=(ServerMetrics(), RequestLog()), clock=lambda: 1.0
    )
    for observer in record.observers:
        observer.started(record)
    record.begin(MODEL, 2, 10)
    record.count(0, 1)
    record.finish()
    line: dict[str, Any] = json.loads(caplog.records[0].message)
    assert line["finish_reason"] == "abort"


def test_the_page_of_metrics_lists_what_is_exported() -> None:
    assert METRICS_PAGE.read_text() == metrics_page(), "run python -m tools.metrics_doc"
