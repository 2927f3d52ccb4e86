"""Joins engine and server: what `forerun serve` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from forerun.chat.choice import AUTO
from forerun.chat.prompts import PromptWriter
from forerun.compose import AsyncEngine, LoadProgress, as_listed
from forerun.compose_embeddings import is_embedding_model, open_embedding_engine
from forerun.compose_process import in_own_process
from forerun.core.engine_limits import EngineLimits
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.embedding import EmbeddingEngine
from forerun.engine_config import EngineConfig
from forerun.errors import ForerunError
from forerun.media.addresses import allowed_host
from forerun.media.loading import MediaLoader
from forerun.server.app import create_app
from forerun.server.binding import listening_sockets
from forerun.server.chat_front import ChatFront
from forerun.server.listening import HttpServer
from forerun.server.preparing import GrammarCheck, Preparation
from forerun.server.seats import Seats
from forerun.server.service import EngineService
from forerun.server.serving import Backend, EmbeddingServing, ServedModel, Serving
from forerun.server.settings import ServerSettings
from forerun.structured.checking import GrammarChecker
from forerun.structured.tokens import TokenTable

OpenEngine = Callable[[EngineConfig, LoadProgress], AsyncioEngine | EmbeddingEngine]


def open_engine(config: EngineConfig, progress: LoadProgress) -> AsyncioEngine | EmbeddingEngine:
    """Load the models, those that generate in a process of their own. Raises ModelError."""
    if is_embedding_model(config):
        return open_embedding_engine(config, progress)
    return AsyncEngine(in_own_process(config, progress))


@dataclass(frozen=True, slots=True)
class Announcements:
    """Who is told how the start goes. Called on the event loop, but for `progress`, which comes from a thread."""

    listening: Callable[[str], None]
    """The address; the model may still be loading."""
    progress: LoadProgress
    ready: Callable[[Serving | EmbeddingServing], None]
    stopping: Callable[[int], None] = lambda _: None
    """How many answers are still open when the server is told to stop."""


def serve(
    config: EngineConfig,
    settings: ServerSettings,
    told: Announcements,
    *,
    chat_format: str = AUTO,
    opening: OpenEngine = open_engine,
) -> None:
    """Serve until a signal comes. Raises ForerunError where the model cannot be loaded, and InvalidConfigError
    before that is tried where the port cannot be had."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(as_listed(config), settings, told, opening, chat_format))


async def _serve(
    config: EngineConfig, settings: ServerSettings, told: Announcements, opening: OpenEngine, chat_format: str
) -> None:
    backend = Backend(settings)
    server = HttpServer(create_app(backend), backend, started=told.listening, stopping=told.stopping)
    sockets = listening_sockets(settings.host, settings.port)  # before the model: loading it takes long
    held = ExitStack()
    loading = asyncio.create_task(_load(config, backend, told, opening, chat_format, held))
    serving = asyncio.create_task(server.serve(sockets))
    try:
        await asyncio.wait([loading, serving], return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is not None:
            server.should_exit = True
        await serving
        loading.result() if loading.done() else loading.cancel()
    finally:
        if backend.serving is not None:
            await backend.serving.engine.close()
        if backend.embedding is not None:
            await asyncio.to_thread(backend.embedding.engine.close)
        await asyncio.to_thread(held.close)


async def _load(
    config: EngineConfig,
    backend: Backend,
    told: Announcements,
    opening: OpenEngine,
    chat_format: str,
    held: ExitStack,
) -> None:
    """Make the backend ready; `held` is given what has to be closed after the engine. Raises ForerunError."""

    def progress(name: str, share: float) -> None:
        backend.loading(name, share)
        told.progress(name, share)

    try:
        engine = await asyncio.to_thread(opening, config, progress)
    except ForerunError as error:
        backend.failed(str(error))
        raise
    model_id = served_id(config.model)
    if isinstance(engine, EmbeddingEngine):
        model = ServedModel(model_id, engine.model_name, backend.settings.aliases)
        backend.embedding = EmbeddingServing(engine, model)
        told.ready(backend.embedding)
        return
    table = await asyncio.to_thread(engine.tokenizer.read, TokenTable.of)
    checker = GrammarChecker(table)
    held.callback(checker.close)
    media = media_loader(backend.settings)
    held.callback(media.close)
    backend.serving = serving_on(
        engine,
        backend.settings,
        model_id,
        max_num_seqs=engine.max_num_seqs,
        limits=limits_of(config, engine.tokenizer.size),
        chat_format=chat_format,
        grammars=checker,
        media=media,
    )
    told.ready(backend.serving)


def media_loader(settings: ServerSettings) -> MediaLoader:
    """What reads the images of requests; to be closed. Raises InvalidConfigError."""
    hosts = [allowed_host(host) for host in settings.allow_media_url]
    return MediaLoader(settings.media_limits, hosts=hosts, root=settings.media_root)


def served_id(name: str) -> str:
    """What clients call a model that is loaded by this name: an id as it is, of a file its name without the ending."""
    return Path(name).name.removesuffix(".gguf")


def limits_of(config: EngineConfig, vocabulary_size: int) -> EngineLimits:
    """What an engine of this configuration refuses."""
    return EngineLimits(
        vocabulary_size=vocabulary_size,
        adapters=frozenset(config.adapters),
        fixed_drafts=0 if config.drafts_by_gain else config.draft_tokens,
        accepts_at_random=config.synthetic_acceptance is not None,
    )


def serving_on(
    engine: AsyncioEngine,
    settings: ServerSettings,
    model_id: str,
    *,
    max_num_seqs: int,
    limits: EngineLimits | None = None,
    chat_format: str = AUTO,
    grammars: GrammarCheck | None = None,
    media: MediaLoader | None = None,
) -> Serving:
    """What stands in front of an engine. Raises InvalidConfigError for a chat format that is not known."""
    writer = engine.chat_template
    chat = ChatFront(writer, chat_format) if isinstance(writer, PromptWriter) else None
    seats = Seats(max_num_seqs, settings.max_queue)
    service = EngineService(engine, Preparation(engine, chat, grammars, limits, media), seats, timeout=settings.timeout)
    return Serving(engine, service, seats, ServedModel(model_id, engine.model_name, settings.aliases))
