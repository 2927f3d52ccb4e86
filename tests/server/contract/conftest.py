"""Servers that the official clients talk to: one whose answers are scripted, one with SmolLM2. Each starts once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from forerun.compose_models import open_engine, serving_on
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine_config import EngineConfig
from forerun.server.app import create_app
from forerun.server.model_entry import ServedModel
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings
from forerun.structured.checking import GrammarChecker
from forerun.structured.tokens import TokenTable
from forerun.testing.served import served_parts
from tests.server.scripted import MODEL, ScriptedService, scripted_backend
from tests.server.support import loaded_backend

KEY = "the-right-key"


@dataclass(frozen=True, slots=True)
class Clients:
    """The official clients of one server. `model` is what it serves."""

    url: str
    model: str
    key: str = KEY
    opened: ExitStack = field(default_factory=ExitStack)
    """Clients with open connections: a test closes them, and leaves none to the collector."""

    def openai(self, key: str | None = None) -> OpenAI:
        return self.opened.enter_context(OpenAI(base_url=f"{self.url}/v1", api_key=key or self.key, max_retries=0))

    def async_openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    def anthropic(self, key: str | None = None) -> Anthropic:
        return self.opened.enter_context(Anthropic(base_url=self.url, api_key=key or self.key, max_retries=0))

    def async_anthropic(self) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.url, api_key=self.key, max_retries=0)


@dataclass(frozen=True, slots=True)
class Scripted(Clients):
    service: ScriptedService = field(default_factory=ScriptedService)


@contextmanager
def listening(backend: Backend) -> Iterator[str]:
    """The backend's address while it is served on a thread."""
    server = uvicorn.Server(uvicorn.Config(create_app(backend), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[Scripted]:
    service, engine = ScriptedService(), AsyncioEngine(served_parts())
    with listening(scripted_backend(service, engine, ServerSettings(api_keys=frozenset({KEY})))) as url:
        yield Scripted(url, MODEL, service=service)
    asyncio.run(engine.close())


@pytest.fixture
def scripted(scripted_server: Scripted) -> Iterator[Scripted]:
    """The scripted server with nothing to say yet."""
    service = scripted_server.service
    service.script, service.refusal = (), None
    service.jobs.clear()
    with scripted_server.opened:
        yield scripted_server


@dataclass(frozen=True, slots=True)
class Real(Clients):
    """SmolLM2 behind the whole server."""

    engine: AsyncioEngine = field(kw_only=True)

    def assert_idle(self) -> None:
        """No request runs or waits, within two seconds."""
        for _ in range(200):
            stats = asyncio.run(self.engine.stats())
            if (stats.running, stats.waiting) == (0, 0):
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"still at work: {stats}")


@pytest.fixture(scope="session")
def real_server(smollm2_path: Path) -> Iterator[Real]:
    """A server with SmolLM2, one for all tests."""
    settings = ServerSettings(api_keys=frozenset({KEY}))
    config = EngineConfig(model=str(smollm2_path), n_ctx=2048, max_num_seqs=4)
    engine = open_engine(config, lambda *_: None)
    assert isinstance(engine, AsyncioEngine)
    checker = GrammarChecker(lambda: engine.tokenizer.read(TokenTable.of))
    model = ServedModel("smollm2", engine.model_name, embeds=False)
    serving = serving_on(engine, settings, model, max_num_seqs=4, grammars=checker)
    with listening(loaded_backend(settings, serving)) as url:
        yield Real(url, "smollm2", engine=engine)
    asyncio.run(engine.close())
    checker.close()


@pytest.fixture
def real(real_server: Real) -> Iterator[Real]:
    with real_server.opened:
        yield real_server
