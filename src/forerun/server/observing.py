"""Puts observers around an application: metrics always, the log and traces where they are wanted."""

from __future__ import annotations

from fastapi import FastAPI

from forerun.server import metrics
from forerun.server.metrics import MetricsPage, ServerMetrics
from forerun.server.records import RequestObserver
from forerun.server.request_log import RequestLog
from forerun.server.serving import Backend
from forerun.server.settings import LogFormat
from forerun.server.tracing import open_tracing
from forerun.server.watching import Watch


def observe(app: FastAPI, backend: Backend) -> None:
    """Watch all requests, and tell at /metrics. To be called last: what is added later is not watched.

    Raises InvalidConfigError where traces are wanted and cannot be made.
    """
    settings = backend.settings
    counts = ServerMetrics()
    observers: list[RequestObserver] = [counts]
    if settings.log_format is not LogFormat.OFF:
        observers.append(RequestLog(settings.log_format))
    if (tracing := open_tracing(settings.otel_endpoint)) is not None:
        observers.append(tracing)
    app.state.metrics = MetricsPage(counts, backend)
    app.include_router(metrics.router)
    app.add_middleware(Watch, observers=observers)
