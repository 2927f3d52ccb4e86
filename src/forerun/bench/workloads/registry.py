"""All workloads, by the names people type."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, get_type_hints

from forerun.bench.workloads.agents import Agents
from forerun.bench.workloads.disturbed import Disturbed
from forerun.bench.workloads.images import Images
from forerun.bench.workloads.prefixes import Crowd, FanOut, Tools, Turns
from forerun.bench.workloads.streams import Cancel, ClosedLoop, Concurrent, Poisson, Prefill, Single, Stall
from forerun.bench.workloads.texts import Copying, Creative
from forerun.bench.workloads.workload import Workload
from forerun.errors import BenchmarkError

WORKLOADS: Final[dict[str, type[Workload]]] = {
    kind.name: kind
    for kind in (
        Single,
        Prefill,
        Concurrent,
        FanOut,
        Turns,
        Crowd,
        Stall,
        Copying,
        Creative,
        Tools,
        Cancel,
        Images,
        Agents,
        ClosedLoop,
        Poisson,
        Disturbed,
    )
}
DEFAULT: Final = (
    "single",
    "prefill",
    "concurrent:streams=1",
    "concurrent:streams=2",
    "concurrent:streams=4",
    "concurrent:streams=8",
    "concurrent:streams=16",
    "fan-out",
    "turns",
    "crowd",
    "stall",
    "copy",
    "creative",
    "cancel",
    "closed",
    "poisson",
)
"""What needs neither tools, images, recorded sessions nor a server on this machine."""


def parse_workload(text: str) -> Workload:
    """Of `single`, or of `fan-out:branches=4,shared=512`. Raises BenchmarkError, naming what there is."""
    name, _, sizes = text.partition(":")
    kind = WORKLOADS.get(name)
    if kind is None:
        raise BenchmarkError(f"there is no workload {name!r}, but {', '.join(WORKLOADS)}")
    values = dict(_size(kind, part) for part in sizes.split(",") if part)
    return replace(kind(), **values)


def parse_workloads(texts: Sequence[str], scale: float) -> list[Workload]:
    """The same of several, with all lengths in tokens times `scale`; of the default ones where none is named."""
    return [parse_workload(text).scaled(scale) for text in texts or DEFAULT]


def _size(kind: type[Workload], text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    known = {field.name: field for field in dataclasses.fields(kind)}
    if name not in known:
        raise BenchmarkError(f"{kind.name}: there is no size {name!r}, but {', '.join(known)}")
    wanted = get_type_hints(kind)[name]
    try:
        number = wanted(value)
    except ValueError as error:
        raise BenchmarkError(f"{kind.name}: {name} must be a number, got {value!r}") from error
    if wanted is not str and not number > 0:
        raise BenchmarkError(f"{kind.name}: {name} must be above 0, got {value}")
    return name, number
