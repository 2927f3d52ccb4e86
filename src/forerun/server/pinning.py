"""Keeps what a job asked to be kept: once its prompt has been computed, since only what is stored can be pinned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from forerun.core.adapters import AdapterSet
from forerun.core.prompt import PromptLayout
from forerun.engine.async_engine import AsyncioEngine
from forerun.errors import ForerunError

logger = logging.getLogger(__name__)

_TRIES: Final = (0.0, 0.2, 1.0, 5.0, 20.0)
"""Seconds before each: a prefix is copied to host memory when nothing is more urgent."""


class Pinning:
    """Tasks that pin. Used on the event loop."""

    def __init__(self, engine: AsyncioEngine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, pins: Sequence[tuple[PromptLayout, float]], *, tenant: str = "", adapters: AdapterSet = ()) -> None:
        """Pin each of these prompts for so many seconds, as soon as it is stored."""
        for layout, seconds in pins:
            task = asyncio.create_task(self._keep(layout, seconds, tenant, dict(adapters)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _keep(self, layout: PromptLayout, seconds: float, tenant: str, adapters: dict[str, float]) -> None:
        try:
            for pause in _TRIES:
                await asyncio.sleep(pause)
                pinned = await self._engine.cache.pin(layout, seconds, tenant=tenant, adapters=adapters)
                if pinned >= layout.logical_tokens - 1:
                    return
        except ForerunError as error:
            logger.info("a prompt could not be pinned: %s", error)
