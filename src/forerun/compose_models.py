"""The models of a server: how each is looked at, loaded and put behind the APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.chat.choice import AUTO
from forerun.chat.prompts import PromptWriter
from forerun.compose import AsyncEngine, as_listed, usable_files
from forerun.compose_embeddings import is_embedding_model, open_embedding_engine
from forerun.compose_process import in_own_process
from forerun.core.engine_limits import EngineLimits
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.embedding import EmbeddingEngine
from forerun.engine.loading import LoadPhase, LoadProgress, during
from forerun.engine.spawn import SpareProcess
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError, ModelError
from forerun.media.loading import MediaLoader
from forerun.models.probe import probe_model
from forerun.models.resolve import resolve_model
from forerun.server.chat_front import ChatFront
from forerun.server.model_entry import EmbeddingServing, ModelEntry, Opened, ServedModel, Serving
from forerun.server.preparing import GrammarCheck, Preparation
from forerun.server.residency import Footprint
from forerun.server.seats import Seats
from forerun.server.service import EngineService
from forerun.server.settings import ServerSettings
from forerun.structured.checking import GrammarChecker
from forerun.structured.tokens import TokenTable

OpenEngine = Callable[[EngineConfig, LoadProgress], AsyncioEngine | EmbeddingEngine]
_UNKNOWN = Footprint(0, 0)


def open_engine(
    config: EngineConfig, progress: LoadProgress, spare: SpareProcess | None = None
) -> AsyncioEngine | EmbeddingEngine:
    """Load the models, those that generate in a process of their own (`spare`, the first one). Raises ModelError, and
    what `progress` raises."""
    if is_embedding_model(config):
        if spare is not None:
            spare.end()
        return open_embedding_engine(config, progress)
    return AsyncEngine(in_own_process(config, progress, spare=spare))


@dataclass(frozen=True, slots=True)
class ToServe:
    """A model that a server is to have."""

    config: EngineConfig
    name: str | None = None
    """What clients call it. None: the id it is loaded by, of a file its name without the ending."""
    aliases: tuple[str, ...] = ()
    chat_format: str = AUTO
    """How it writes calls and reasoning."""
    is_loaded_at_once: bool = False
    """When the server starts, not when it is first asked for."""

    def __post_init__(self) -> None:
        for field, name in (("model", self.id), *(("alias", alias) for alias in self.aliases)):
            if not name or name != name.strip():
                raise InvalidConfigError(field, f"a name has no spaces around it and is not empty, got {name!r}")

    @property
    def id(self) -> str:
        return served_id(self.config.model) if self.name is None else self.name


def served_id(name: str) -> str:
    """What clients call a model that is loaded by this name: an id as it is, of a file its name without the ending."""
    return Path(name).name.removesuffix(".gguf")


def model_entry(
    one: ToServe, settings: ServerSettings, opening: OpenEngine, media: MediaLoader, *, is_alone: bool
) -> ModelEntry:
    """A model that is not loaded yet. One of several is looked at: what it takes, and that it can be loaded here at
    all. Raises ModelError where it cannot."""
    config = as_listed(one.config)
    model = ServedModel(one.id, _file_name(config.model), one.aliases, tuple(config.adapters))
    footprint = _UNKNOWN
    if not is_alone:
        model = replace(model, embeds=is_embedding_model(config))
        footprint = _embedder_footprint(config) if model.embeds else _footprint(config)
    return ModelEntry(model, ConfiguredModel(config, settings, opening, media, one.chat_format, footprint))


def _file_name(name: str) -> str:
    """The model's file; "" where there is none, which loading tells better."""
    try:
        return resolve_model(name).name
    except ModelError:
        return ""


def _footprint(config: EngineConfig) -> Footprint:
    """Of the machine's memory; GPUs are not counted."""
    found = usable_files(config, during(LoadPhase.FILES, None))
    host = found.places[0]
    return Footprint(host.needed, max(host.weights - found.repacked, 0))


def _embedder_footprint(config: EngineConfig) -> Footprint:
    """Its file's size: its context is small beside it."""
    size = probe_model(resolve_model(config.model)).file_size
    return Footprint(size, size)


@dataclass(frozen=True, slots=True)
class ConfiguredModel:
    """Implements model_entry.ModelSource."""

    config: EngineConfig
    settings: ServerSettings
    opening: OpenEngine
    media: MediaLoader
    """The server's, which closes it."""
    chat_format: str
    footprint: Footprint

    def open(self, model: ServedModel, progress: LoadProgress) -> Opened:
        engine = self.opening(self.config, progress)
        if isinstance(engine, EmbeddingEngine):
            return _embedding(engine, replace(model, embeds=True))
        try:
            return self._writing(engine, model)
        except BaseException:
            asyncio.run(engine.close())
            raise

    def _writing(self, engine: AsyncioEngine, model: ServedModel) -> Opened:
        with ExitStack() as opened:
            checker = GrammarChecker(lambda: engine.tokenizer.read(TokenTable.of))
            opened.callback(checker.close)
            serving = serving_on(
                engine,
                self.settings,
                model,
                max_num_seqs=engine.max_num_seqs,
                limits=limits_of(self.config, engine.tokenizer.size),
                chat_format=self.chat_format,
                grammars=checker,
                media=self.media,
            )
            close_checker = opened.pop_all().close

        async def close() -> None:
            await engine.close()
            await asyncio.to_thread(close_checker)

        return Opened(serving, close)


def _embedding(engine: EmbeddingEngine, model: ServedModel) -> Opened:
    async def close() -> None:
        await asyncio.to_thread(engine.close)

    return Opened(EmbeddingServing(engine, model), close)


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
    model: ServedModel,
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
    return Serving(engine, service, seats, model)
