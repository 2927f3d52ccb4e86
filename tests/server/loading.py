"""Models that load when a test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forerun.compose_models import limits_of, serving_on
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.loading import LoadPhase, LoadProgress
from forerun.engine.parts import EngineParts
from forerun.engine_config import EngineConfig
from forerun.errors import ForerunError
from forerun.server.model_entry import ModelEntry, Opened, ServedModel
from forerun.server.registry import ModelRegistry
from forerun.server.residency import Footprint
from forerun.server.settings import ServerSettings
from forerun.testing.served import served_parts

PATIENCE = 10.0


@dataclass(slots=True)
class FakeSource:
    """Implements ModelSource on the fake engine: an engine each time, and a list of what was done."""

    name: str
    done: list[str]
    footprint: Footprint = field(default_factory=lambda: Footprint(0, 0))
    parts: Callable[[], EngineParts] = served_parts
    error: ForerunError | None = None
    is_free: threading.Event = field(default_factory=threading.Event)
    """Cleared: loading it goes on until this is set, or its progress raises."""

    def open(self, model: ServedModel, progress: LoadProgress) -> Opened:
        self.done.append(f"load {self.name}")
        try:
            while not self.is_free.wait(0.005):
                progress(LoadPhase.TARGET, self.name, 0.25)
            if self.error is not None:
                raise self.error
        except BaseException:
            self.done.append(f"give up {self.name}")
            raise
        engine = AsyncioEngine(self.parts())
        limits = limits_of(EngineConfig(model="fake", adapters=dict.fromkeys(model.adapters, "x")), 258)

        async def close() -> None:
            self.done.append(f"close {self.name}")
            await engine.close()

        serving = serving_on(engine, ServerSettings(), model, max_num_seqs=4, limits=limits)
        return Opened(serving, close)


class FakeModels:
    """A registry of fake models that load at once, unless a test holds one up."""

    def __init__(self, names: str, **options: Any) -> None:
        self.done: list[str] = []
        self.sources = {name: FakeSource(name, self.done) for name in names}
        for source in self.sources.values():
            source.is_free.set()
        entries = [ModelEntry(ServedModel(name, embeds=False), source) for name, source in self.sources.items()]
        self.entries = {entry.model.id: entry for entry in entries}
        self.registry = ModelRegistry(entries, **options)

    async def use(self, name: str) -> None:
        """Have a model for a moment."""
        await self.registry.acquire(self.entries[name])
        self.registry.release(self.entries[name])

    def asking(self, name: str) -> asyncio.Task[Any]:
        """Who asks for a model, and holds it."""
        return asyncio.create_task(self.registry.acquire(self.entries[name]))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        await self.registry.close()
        self.registry.check_integrity()
