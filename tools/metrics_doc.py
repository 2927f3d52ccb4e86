"""Writes docs/metrics.md from the metrics themselves: `python -m tools.metrics_doc`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from forerun.server.metrics import MetricsPage, ServerMetrics
from forerun.server.registry import ModelRegistry
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings

METRICS_PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
_HEAD: Final = """\
# Metrics

`GET /metrics` answers in Prometheus' text format; with API keys it asks for one, as every route but `/health` does.
Names follow vLLM's where they mean the same. Label values come from fixed sets, `model` is one of the names that the
server was started with: nothing a caller sends becomes one.

The server counts requests; the engine counts its steps, and is asked between two of them. A scrape waits for it half a
second and then tells what it said last (`forerun:engine_counts_age_seconds`). When its process comes back after a
crash, or the model is loaded again, counters go on from where they were last read; gauges of a model that is not loaded
are left out.

This table is made from the code: `python -m tools.metrics_doc`.

| metric | type | labels | what it says |
|---|---|---|---|
"""


def metrics_page() -> str:
    """The whole page."""
    page = MetricsPage(ServerMetrics(), Backend(ServerSettings(), ModelRegistry([])))
    return _HEAD + "".join(_line(family) for family in page.collect())


def _line(family: Metric) -> str:
    labels = ", ".join(f"`{name}`" for name in getattr(family, "_labelnames", ()))
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |\n"


if __name__ == "__main__":
    METRICS_PAGE.write_text(metrics_page())
    sys.stderr.write(f"{METRICS_PAGE} written\n")
