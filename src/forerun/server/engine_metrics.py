"""The engine's telemetry as Prometheus families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from forerun.engine.histogram import Histogram
from forerun.engine.telemetry import DraftCounts, EngineTelemetry
from forerun.server.engine_counts import EngineCounts

PREFIX: Final = "forerun:"
ValueT = TypeVar("ValueT")
Labelled: TypeAlias = Mapping[tuple[str, ...], float]
"""Values by label values."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A counter or gauge of the engine's."""

    name: str
    help: str
    read: Callable[[EngineTelemetry], Labelled]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Distribution:
    """A histogram of the engine's."""

    name: str
    help: str
    read: Callable[[EngineTelemetry], Mapping[tuple[str, ...], Histogram]]
    labels: tuple[str, ...] = ()


def _one(value: float) -> Labelled:
    return {(): value}


def _by(counts: Mapping[str, float]) -> Labelled:
    return {(name,): value for name, value in counts.items()}


def _by_position(
    drafts: Mapping[str, DraftCounts], places: Callable[[DraftCounts], tuple[int, ...]]
) -> dict[tuple[str, ...], float]:
    return {
        (drafter, str(position)): count
        for drafter, counts in drafts.items()
        for position, count in enumerate(places(counts))
    }


_COUNTERS: Final = (
    _Number(
        "prompt_tokens",
        "Prompt tokens by source: computed (again too, after a preemption or a failed step), or reused from the KV "
        "memory (resident), host memory or disk. Reused ones count when their request ends.",
        lambda told: _by({"computed": told.computed_tokens, **told.cached_tokens}),
        ("source",),
    ),
    _Number(
        "generation_tokens",
        "Tokens of answers by who came up with them: target is the model's own choice, else the drafter.",
        lambda told: _by(told.output_tokens),
        ("source",),
    ),
    _Number(
        "draft_tokens",
        "Drafted tokens that were verified, by drafter and place in the draft (0 is the first).",
        lambda told: _by_position(told.drafts, lambda counts: counts.proposed),
        ("drafter", "position"),
    ),
    _Number(
        "accepted_draft_tokens",
        "Those among them that the model confirmed.",
        lambda told: _by_position(told.drafts, lambda counts: counts.accepted),
        ("drafter", "position"),
    ),
    _Number(
        "kv_operations",
        "Operations on KV memory and its tiers; segments for store, restore, drop, persist, fetch and remove.",
        lambda told: _by(told.operations),
        ("operation",),
    ),
    _Number(
        "prefix_evictions",
        "Cached prefixes that left the KV memory (pool), and segments that left host memory or disk.",
        lambda told: _by(
            {
                "pool": told.stats.evicted_prefixes,
                "host": told.operations.get("drop", 0),
                "disk": told.operations.get("remove", 0),
            }
        ),
        ("tier",),
    ),
    _Number(
        "preemptions",
        "Running requests that had to give their cells back.",
        lambda told: _one(told.stats.preemptions),
    ),
    _Number("failed_steps", "Steps that failed, by kind.", lambda told: _by(told.failed_steps), ("kind",)),
    _Number(
        "quarantined_sequences",
        "Sequences whose content a failed step left unknown.",
        lambda told: _one(told.stats.quarantines),
    ),
    _Number(
        "request_finished",
        "Requests of the engine (choices) that ended, by finish reason.",
        lambda told: _by(told.finished),
        ("finished_reason",),
    ),
    _Number(
        "engine_errors",
        "Requests of the engine that ended with an error, by its class.",
        lambda told: _by(told.errors),
        ("kind",),
    ),
)

_GAUGES: Final = (
    _Number("num_requests_running", "Requests in the engine's batch.", lambda told: _one(told.stats.running)),
    _Number("num_requests_waiting", "Requests that wait for a place in it.", lambda told: _one(told.stats.waiting)),
    _Number(
        "num_requests_parked",
        "Those among them that ran, and wait for cells to go on.",
        lambda told: _one(told.stats.parked),
    ),
    _Number("num_requests_paused", "Streams whose readers are behind.", lambda told: _one(told.stats.paused)),
    _Number("kv_cells_used", "Cells of the KV memory in use.", lambda told: _one(told.stats.used_cells)),
    _Number("kv_cells", "Cells of the KV memory.", lambda told: _one(told.stats.total_cells)),
    _Number(
        "kv_cache_usage_perc",
        "Share of the cells in use, idle prefixes included; 1 is full.",
        lambda told: _one(told.stats.used_cells / told.stats.total_cells),
    ),
    _Number("cached_prefixes", "Idle prefixes in the KV memory.", lambda told: _one(told.stats.cached_prefixes)),
    _Number("stored_segments", "Segments in host memory or on disk.", lambda told: _one(told.stats.stored_segments)),
    _Number(
        "cache_tier_bytes",
        "Bytes of stored prefixes, by tier.",
        lambda told: _by({"host": told.stats.host_bytes, "disk": told.stats.disk_bytes}),
        ("tier",),
    ),
    _Number(
        "cache_tier_limit_bytes",
        "Bytes that stored prefixes may take, by tier.",
        lambda told: _by({"host": told.stats.host_limit, "disk": told.stats.disk_limit}),
        ("tier",),
    ),
)

_HISTOGRAMS: Final = (
    _Distribution("step_time_seconds", "Time of a step that evaluates rows.", lambda told: {(): told.step_seconds}),
    _Distribution(
        "rows_per_step",
        "Rows of a successful step, by kind: tokens that are due, drafts, prompt tokens. Each step counts in each.",
        lambda told: {(kind,): histogram for kind, histogram in told.rows.items()},
        ("kind",),
    ),
    _Distribution(
        "kv_store_time_seconds",
        "Time that copying prefixes to host memory took, of steps that did.",
        lambda told: {(): told.store_seconds},
    ),
    _Distribution(
        "kv_restore_time_seconds",
        "Time that copying them back took, of steps that did.",
        lambda told: {(): told.restore_seconds},
    ),
)


def engine_families(counts: Mapping[str, EngineCounts]) -> Iterator[Metric]:
    """All families of the engines', by the models' names; without samples where nothing is known."""
    told = {model: one.telemetry for model, one in counts.items()}
    current = {model: telemetry for model, telemetry in told.items() if counts[model].is_current}
    for one in _COUNTERS:
        counter = CounterMetricFamily(PREFIX + one.name, one.help, labels=("model", *one.labels))
        yield numbers(counter, _by_model(told, one.read))
    for one in _GAUGES:
        gauge = GaugeMetricFamily(PREFIX + one.name, one.help, labels=("model", *one.labels))
        yield numbers(gauge, _by_model(current, one.read))
    for each in _HISTOGRAMS:
        yield histograms(each.name, each.help, ("model", *each.labels), _by_model(told, each.read))
    yield numbers(
        CounterMetricFamily(
            PREFIX + "engine_restarts", "Times the engine came back after its process had ended.", labels=("model",)
        ),
        {(model,): max(one.starts - one.loads, 0) for model, one in counts.items()},
    )
    yield numbers(
        GaugeMetricFamily(
            PREFIX + "engine_counts_age_seconds",
            "How old the engine's figures are: it answers between two steps, and a scrape waits for it but a moment.",
            labels=("model",),
        ),
        {(model,): one.age for model, one in counts.items() if one.is_current},
    )


def _by_model(
    told: Mapping[str, EngineTelemetry], read: Callable[[EngineTelemetry], Mapping[tuple[str, ...], ValueT]]
) -> dict[tuple[str, ...], ValueT]:
    """The values of all models, with the model's name before the other labels."""
    return {(model, *labels): value for model, telemetry in told.items() for labels, value in read(telemetry).items()}


def numbers(family: CounterMetricFamily | GaugeMetricFamily, values: Labelled) -> Metric:
    """A family with its samples."""
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def histograms(name: str, help_text: str, labels: Iterable[str], values: Mapping[tuple[str, ...], Histogram]) -> Metric:
    """A histogram family with its samples."""
    family = HistogramMetricFamily(PREFIX + name, help_text, labels=tuple(labels))
    for own, histogram in values.items():
        edges = [*(f"{bound:g}" if bound % 1 else f"{bound:.1f}" for bound in histogram.bounds), "+Inf"]
        family.add_metric(own, list(zip(edges, accumulate(histogram.counts), strict=True)), histogram.total)
    return family
