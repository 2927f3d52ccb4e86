"""Joins engines and server: what `forerun serve` runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import uvloop

from forerun.compose_models import OpenEngine, ToServe, model_entry, open_engine
from forerun.engine.loading import LoadProgress
from forerun.media.addresses import allowed_host
from forerun.media.loading import MediaLoader
from forerun.models.machine_memory import free_memory
from forerun.server.app import create_app
from forerun.server.binding import listening_sockets
from forerun.server.listening import HttpServer
from forerun.server.model_entry import ModelEntry, ServedModel
from forerun.server.registry import ModelRegistry
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Announcements:
    """Who is told how the start goes. Called on the event loop, but for `progress`, which comes from threads."""

    listening: Callable[[str], None]
    """The address; models may still be loading."""
    progress: LoadProgress
    """Of every model that is loaded, then and later."""
    ready: Callable[[Sequence[ServedModel]], None]
    stopping: Callable[[int], None] = lambda _: None
    """How many answers are still open when the server is told to stop."""


def serve(
    models: Sequence[ToServe],
    settings: ServerSettings,
    told: Announcements,
    *,
    opening: OpenEngine = open_engine,
) -> None:
    """Serve until a signal comes. Raises ForerunError where a model that is to be loaded at once cannot be, or one of
    several cannot be loaded here at all, and InvalidConfigError before any is looked at where the port cannot be had.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(models, settings, told, opening))


async def _serve(models: Sequence[ToServe], settings: ServerSettings, told: Announcements, opening: OpenEngine) -> None:
    with ExitStack() as held:
        sockets = listening_sockets(settings.host, settings.port)  # before the models: looking at them takes long
        for one in sockets:
            held.enter_context(one)
        media = media_loader(settings)
        held.callback(media.close)
        is_alone = len(models) == 1
        looked_at = [partial(model_entry, one, settings, opening, media, is_alone=is_alone) for one in models]
        entries = [await asyncio.to_thread(look) for look in looked_at]
        backend = Backend(settings, _registry(entries, settings, told))
        is_listening = asyncio.Event()

        def listening(address: str) -> None:
            told.listening(address)
            is_listening.set()

        server = HttpServer(create_app(backend), backend, started=listening, stopping=told.stopping)
        at_once = [entry for entry, one in zip(entries, models, strict=True) if one.is_loaded_at_once]
        await _run(server, sockets, backend, _load(backend.models, at_once, is_listening, told))


def media_loader(settings: ServerSettings) -> MediaLoader:
    """What reads the images of requests; to be closed. Raises InvalidConfigError."""
    hosts = [allowed_host(host) for host in settings.allow_media_url]
    return MediaLoader(settings.media_limits, hosts=hosts, root=settings.media_root)


def _registry(entries: Sequence[ModelEntry], settings: ServerSettings, told: Announcements) -> ModelRegistry:
    return ModelRegistry(
        entries,
        max_loaded=settings.max_loaded,
        max_waiting=settings.max_queue + 1,  # the one that it is loaded for does not wait for others
        patience=settings.timeout,
        free=_free_bytes,
        progress=told.progress,
    )


async def _run(
    server: HttpServer, sockets: list[socket.socket], backend: Backend, starting: Coroutine[None, None, None]
) -> None:
    """Serve until the server is told to stop, or `starting` fails, which is raised."""
    loading = asyncio.create_task(starting)
    serving = asyncio.create_task(server.serve(sockets))
    try:
        await asyncio.wait([loading, serving], return_when=asyncio.FIRST_COMPLETED)
        failed = loading.exception() if loading.done() and not backend.is_stopping else None
        server.should_exit |= failed is not None
        await serving
        if failed is not None:
            raise failed
    finally:
        loading.cancel()
        await backend.models.close()
        await asyncio.gather(loading, return_exceptions=True)


async def _load(
    registry: ModelRegistry, at_once: Sequence[ModelEntry], is_listening: asyncio.Event, told: Announcements
) -> None:
    """Raises ForerunError, as the loading did."""
    for entry in at_once:
        await registry.load(entry)
    await is_listening.wait()
    told.ready([entry.model for entry in registry.entries])


def _free_bytes() -> int | None:
    found = free_memory()
    return None if found is None else found.free
