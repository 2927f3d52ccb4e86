"""`GET /metrics`: what the server and its engine do, for Prometheus.

Label values come from bounded sets (routes, statuses, kinds, drafters): nothing a caller can make up. The server's own
counts belong to the event loop; the engine's come as one value, asked for with each scrape.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from forerun.engine.health import EngineState
from forerun.engine.histogram import Buckets
from forerun.server.about import VERSION
from forerun.server.engine_counts import EngineCounts
from forerun.server.engine_metrics import PREFIX, engine_families, histograms, numbers
from forerun.server.records import RequestRecord
from forerun.server.serving import Backend

SCRAPE_WAIT: Final = 0.5
"""Seconds that a scrape waits for the engine."""
_LATENCY: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_BETWEEN_TOKENS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    2.5,
)
_TOKENS: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0)
_HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...]]]] = {
    "time_to_first_token_seconds": ("From the request's arrival to the first token of a choice.", _LATENCY),
    "inter_token_latency_seconds": (
        "Time a token took after the one before it; tokens that come together share what they took.",
        _BETWEEN_TOKENS,
    ),
    "request_queue_time_seconds": ("Time a choice waited in the engine's queue.", _LATENCY),
    "request_prefill_time_seconds": ("Time from there to its first token.", _LATENCY),
    "request_decode_time_seconds": ("Time from there to its last token.", _LATENCY),
    "e2e_request_latency_seconds": ("From a request's arrival to the last byte, of requests with tokens.", _LATENCY),
    "request_prompt_tokens": ("Tokens of a request's prompts.", _TOKENS),
    "request_generation_tokens": ("Tokens of all of a request's choices.", _TOKENS),
}


_VERSIONS: Final = (("version", "llama_cpp_python"), (VERSION, version("llama-cpp-python")))


class ServerMetrics:
    """Implements records.RequestObserver: counts requests and what they take."""

    def __init__(self) -> None:
        self._buckets = {name: Buckets(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._ttft = self._buckets["time_to_first_token_seconds"]
        self._between = self._buckets["inter_token_latency_seconds"]
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._errors: Counter[tuple[str, ...]] = Counter()
        self._open = 0

    def started(self, record: RequestRecord) -> None:
        del record
        self._open += 1

    def first_token(self, record: RequestRecord, seconds: float) -> None:
        del record
        self._ttft.add(seconds)

    def tokens(self, record: RequestRecord, count: int, seconds: float) -> None:
        del record
        self._between.add(seconds / count, count)

    def finished(self, record: RequestRecord) -> None:
        self._open -= 1
        self._requests[record.route, record.method, str(record.status)] += 1
        if record.error is not None:
            self._errors[record.route, record.error] += 1
        if record.input_tokens:
            self._buckets["e2e_request_latency_seconds"].add(record.seconds)
            self._buckets["request_prompt_tokens"].add(record.input_tokens)
        for usage in record.usages:
            self._buckets["request_queue_time_seconds"].add(usage.queue_ms / 1e3)
            self._buckets["request_prefill_time_seconds"].add(usage.prefill_ms / 1e3)
            self._buckets["request_decode_time_seconds"].add(usage.decode_ms / 1e3)
        if record.usages:
            self._buckets["request_generation_tokens"].add(record.output_tokens)

    def families(self) -> Iterator[Metric]:
        labels = ("route", "method", "status")
        told = "HTTP requests that ended, by route, method and status."
        yield numbers(CounterMetricFamily(f"{PREFIX}http_requests", told, labels=labels), self._requests)
        told = "HTTP requests that ended with an error, by route and kind."
        yield numbers(CounterMetricFamily(f"{PREFIX}http_errors", told, labels=("route", "kind")), self._errors)
        told = "HTTP requests that are being answered."
        yield numbers(GaugeMetricFamily(f"{PREFIX}http_requests_open", told), {(): self._open})
        for name, (told, _) in _HISTOGRAMS.items():
            yield histograms(name, told, (), {(): self._buckets[name].snapshot()})


class MetricsPage(Collector):
    """The page that Prometheus reads. Used on the event loop."""

    def __init__(self, server: ServerMetrics, backend: Backend) -> None:
        self._server = server
        self._backend = backend
        self._counts: Mapping[str, EngineCounts] = {}
        """By the model's id."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def render(self) -> bytes:
        """The page, in the text format; within SCRAPE_WAIT also where the engine does not answer."""
        entries = [entry for entry in self._backend.models.entries if not entry.model.embeds]
        found = await asyncio.gather(*(entry.counter.counts(SCRAPE_WAIT) for entry in entries))
        self._counts = {
            entry.model.id: replace(counts, is_current=entry.opened is not None, loads=entry.loads)
            for entry, counts in zip(entries, found, strict=True)
            if counts is not None
        }
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield _fact("build_info", "Versions of Forerun and of its llama.cpp binding.", *_VERSIONS)
        yield self._models()
        yield self._states()
        yield self._loads()
        yield from self._server.families()
        yield from engine_families(self._counts)

    def _models(self) -> Metric:
        loaded = [serving for entry in self._backend.models.entries if (serving := entry.serving) is not None]
        values = [(serving.model.id, str(serving.engine.n_ctx)) for serving in loaded]
        return _fact("model_info", "The models that are loaded.", ("model", "n_ctx"), *values)

    def _states(self) -> Metric:
        told = "1 for the state that a model's engine is in, 0 for the others."
        family = GaugeMetricFamily(f"{PREFIX}engine_state", told, labels=("model", "state"))
        now = {entry.model.id: entry.health.state for entry in self._backend.models.entries}
        return numbers(family, {(id_, one.value): float(one is now[id_]) for id_ in now for one in EngineState})

    def _loads(self) -> Metric:
        told = "Times a model was loaded; all but the first after it had been unloaded to make room."
        family = CounterMetricFamily(f"{PREFIX}model_loads", told, labels=("model",))
        return numbers(family, {(entry.model.id,): entry.loads for entry in self._backend.models.entries})


def _fact(name: str, told: str, labels: Sequence[str], *values: tuple[str, ...]) -> Metric:
    """What does not change, as labels of a gauge that is always 1."""
    family = GaugeMetricFamily(f"{PREFIX}{name}", f"{told} Always 1.", labels=labels)
    return numbers(family, dict.fromkeys(values, 1.0))


router = APIRouter(tags=["Operation"])


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Figures of the server and its engine, in Prometheus' text format."""
    page: MetricsPage = request.app.state.metrics
    return Response(await page.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
