"""One OpenTelemetry span a request, with the attributes of the semantic conventions for generative AI; no content.

Used only where traces have somewhere to go and the `otel` extra is installed.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from forerun.errors import InvalidConfigError
from forerun.server.about import VERSION
from forerun.server.records import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

ENDPOINT_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_INSTALL: Final = "traces need OpenTelemetry: pip install 'forerun[otel]'"
_PATH: Final = "/v1/traces"
_SERVER_FAULT: Final = 500
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""`gen_ai.operation.name` by route: only these are traced."""


class Tracing:
    """Implements records.RequestObserver: a span a request, continued from the caller's trace where it names one."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans: dict[int, Span] = {}
        """Of open requests, by their records' identities."""

    def started(self, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(record.headers)
        self._spans[id(record)] = self._tracer.start_span(record.method, context=context, kind=SpanKind.SERVER)

    def first_token(self, record: RequestRecord, seconds: float) -> None:
        span = self._spans.get(id(record))
        if span is not None:
            span.add_event("gen_ai.first_token", {"forerun.seconds_since_arrival": seconds})

    def tokens(self, record: RequestRecord, count: int, seconds: float) -> None:
        pass

    def finished(self, record: RequestRecord) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._spans.pop(id(record), None)
        if span is None:
            return
        operation = _OPERATIONS.get(record.route)
        span.update_name(f"{operation} {record.model}" if operation else f"{record.method} {record.route}")
        span.set_attributes(attributes(record))
        if record.error is not None and (record.status >= _SERVER_FAULT or record.is_stream):
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end()


def attributes(record: RequestRecord) -> dict[str, str | int | float | list[str]]:
    """What a span says of a request."""
    found: dict[str, str | int | float | list[str]] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "forerun.request.id": record.id,
    }
    if record.error is not None:
        found["error.type"] = record.error
    if record.route not in _OPERATIONS:
        return found
    found |= {"gen_ai.operation.name": _OPERATIONS[record.route], "gen_ai.provider.name": "forerun"}
    if record.input_tokens:
        found |= {
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.usage.input_tokens": record.input_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.finish_reasons": list(record.finish_reasons),
        }
    return found


def open_tracing(endpoint: str | None) -> Tracing | None:
    """Traces to an OTLP endpoint (HTTP), or to what the environment says; None where neither names one.

    Raises InvalidConfigError where an endpoint is given and OpenTelemetry is not installed.
    """
    if endpoint is None and not os.environ.get(ENDPOINT_VARIABLE):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        if endpoint is not None:
            raise InvalidConfigError("otel", _INSTALL) from None
        logger.warning("%s is set, but %s", ENDPOINT_VARIABLE, _INSTALL)
        return None
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "forerun", SERVICE_VERSION: VERSION}))
    target = None if endpoint is None else endpoint.rstrip("/") + _PATH
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=target)))
    return Tracing(provider.get_tracer("forerun", VERSION))
