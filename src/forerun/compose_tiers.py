"""Joins what the prefix tiers are made of: the store, the runner's side of it, and what the scheduler has to know."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.compose_media import prefix_disk
from forerun.core.segment import SegmentSizes, StoredSegment

if TYPE_CHECKING:  # forerun.native loads llama.cpp: only an engine that is built does that
    from forerun.engine_config import EngineConfig
    from forerun.models.model_identity import ModelIdentity
    from forerun.native.context import LlamaContext
    from forerun.native.drafter import LlamaDrafter
    from forerun.native.segments import Segments


@dataclass(frozen=True, slots=True)
class OpenTiers:
    """An engine's tiers. The store is closed with the engine."""

    segments: Segments
    found: Sequence[StoredSegment]
    ram: int
    """Bytes."""
    disk: int
    sizes: SegmentSizes
    model_key: str

    def limits(self) -> dict[str, Any]:
        """Fields of SchedulerConfig."""
        return {
            "cache_ram": self.ram,
            "cache_disk": self.disk,
            "segment_sizes": self.sizes,
            "model_key": self.model_key,
        }


def open_tiers(
    config: EngineConfig,
    context: LlamaContext,
    drafter: LlamaDrafter | None,
    identity: ModelIdentity | None,
    loaded: ExitStack,
) -> OpenTiers | None:
    """The tiers of an engine whose contexts are made; None where it keeps prefixes in its KV memory alone.

    `identity`: of the models, where prefixes go to disk. Raises InvalidConfigError.
    """
    from forerun.cache.host import host_bytes
    from forerun.cache.opening import open_store
    from forerun.native.segment_sizes import measured_sizes
    from forerun.native.segments import Segments

    ram = config.cache_ram
    if not ram or not config.moves_prefixes:
        return None
    sizes = measured_sizes(context, drafter)
    sizes = replace(sizes, per_segment=host_bytes(sizes.per_segment))
    if config.cache_dir is None or identity is None:
        store, found = open_store(ram)
        key = ""
    else:
        key = identity.key
        store, found = open_store(ram, Path(config.cache_dir), prefix_disk(config), key, identity.description())
    loaded.callback(store.close)
    return OpenTiers(Segments(context, drafter, store), found, ram, store.disk_budget, sizes, key)
