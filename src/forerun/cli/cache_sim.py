"""`forerun bench cache-sim`: policies side by side on a recorded trace."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from forerun.bench.cache_sim import EVERYTHING, Hits, Outcome, ideal_lengths, simulate
from forerun.bench.trace import Trace, read_trace
from forerun.cli.sizes import parse_size
from forerun.core.recompute import RecomputeCost
from forerun.core.value import POLICIES
from forerun.errors import ForerunError, InvalidConfigError

_SHARE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?%", re.ASCII)


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    budgets: Sequence[str]
    policies: Sequence[str]
    cost: RecomputeCost
    output: Path | None
    """Where the figures go as JSON."""


def simulate_cache(path: Path, options: SimulationOptions) -> None:
    """Replay a trace for each budget and policy, and print a table."""
    trace = _read(path)
    ideal = Hits.of(ideal_lengths(trace.requests), options.cost)
    everything = simulate(trace, "lru", EVERYTHING, options.cost).most_used
    budgets = {text: _budget(text, everything) for text in options.budgets}
    outcomes = [
        (label, simulate(trace, policy, budget, options.cost))
        for label, budget in budgets.items()
        for policy in options.policies
    ]
    Console(highlight=False).print(_table(trace, everything, ideal, outcomes))
    if options.output is not None:
        figures = _figures(trace, everything, ideal, outcomes)
        options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def parse_policies(text: str) -> list[str]:
    """Names separated by commas. Raises InvalidConfigError for one that is not there."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in POLICIES:
            raise InvalidConfigError("--policy", f"there is no {name!r}, but {', '.join(POLICIES)}")
    return names


def _read(path: Path) -> Trace:
    try:
        return read_trace(path)
    except ValueError as error:
        raise ForerunError(str(error)) from error


def _budget(text: str, everything: int) -> int:
    """Bytes of a size, or of a share like "50%"."""
    share = _SHARE.fullmatch(text.strip())
    return round(float(share[1]) / 100 * everything) if share else parse_size("--budget", text)


def _table(trace: Trace, everything: int, ideal: Hits, outcomes: Sequence[tuple[str, Outcome]]) -> Table:
    table = Table(
        title=f"{len(trace.requests)} requests, {everything / 1e6:,.0f} MB hold everything; "
        f"ideal: {ideal.tokens:,} tokens hit, {ideal.saved_seconds:,.0f} s saved",
        title_justify="left",
    )
    for heading in ("budget", "policy"):
        table.add_column(heading)
    for heading in ("hit tokens", "of ideal", "lost", "saved", "of ideal", "evicted"):
        table.add_column(heading, justify="right")
    for label, outcome in outcomes:
        hits = outcome.hits
        table.add_row(
            label,
            outcome.policy,
            f"{hits.tokens:,}",
            f"{_share(hits.tokens, ideal.tokens):.2%}",
            f"{ideal.tokens - hits.tokens:,}",
            f"{hits.saved_seconds:,.1f} s",
            f"{_share(hits.saved_seconds, ideal.saved_seconds):.2%}",
            f"{outcome.evicted:,}",
        )
    return table


def _figures(trace: Trace, everything: int, ideal: Hits, outcomes: Sequence[tuple[str, Outcome]]) -> dict[str, Any]:
    return {
        "model": trace.model,
        "about": trace.about,
        "requests": len(trace.requests),
        "prompt_tokens": sum(request.prompt.size for request in trace.requests),
        "everything_bytes": everything,
        "ideal_tokens": ideal.tokens,
        "ideal_saved_s": ideal.saved_seconds,
        "runs": [
            {
                "budget": label,
                "budget_bytes": outcome.budget,
                "policy": outcome.policy,
                "hit_tokens": outcome.hits.tokens,
                "share_of_ideal": _share(outcome.hits.tokens, ideal.tokens),
                "saved_s": outcome.hits.saved_seconds,
                "share_of_ideal_saved": _share(outcome.hits.saved_seconds, ideal.saved_seconds),
                "evicted_segments": outcome.evicted,
            }
            for label, outcome in outcomes
        ],
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
