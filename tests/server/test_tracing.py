"""Spans of requests, read from OpenTelemetry's exporter in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forerun.server import observing
from forerun.server.tracing import ENDPOINT_VARIABLE, Tracing, open_tracing
from tests.server.support import served

MARKER = "xyzzy-marker-plugh"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(observing, "open_tracing", lambda _: Tracing(provider.get_tracer("test")))
    return exported


def test_a_request_is_one_span_in_the_callers_trace_without_content(exporter: InMemorySpanExporter) -> None:
    async def main() -> None:
        async with served() as server:
            server.client.headers["traceparent"] = PARENT
            await server.chat(MARKER, stream=True)

    asyncio.run(main())
    (span,) = exporter.get_finished_spans()
    told: dict[str, Any] = dict(span.attributes or {})
    assert span.name.startswith("chat ")
    assert format(span.context.trace_id, "032x") == PARENT.split("-")[1]
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.usage.output_tokens"] == 8
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert told["http.response.status_code"] == 200
    assert [event.name for event in span.events] == ["gen_ai.first_token"]
    assert MARKER not in span.to_json()


def test_a_refused_request_says_its_error(exporter: InMemorySpanExporter) -> None:
    async def main() -> None:
        async with served() as server:
            await server.chat(model="nobody")

    asyncio.run(main())
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "model_not_found"


def test_nothing_is_traced_unless_traces_have_somewhere_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)
    assert open_tracing(None) is None
