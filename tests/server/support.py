"""A server on the fake engine: in this process, or listening on a port; and answers that a test writes itself."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from forerun.chat.prompts import PromptWriter
from forerun.chat.templates import ChatTemplate
from forerun.compose_models import serving_on
from forerun.core.config import SchedulerConfig
from forerun.core.sampling import SamplingContext
from forerun.core.scheduler import Scheduler
from forerun.core.verification import Verified, verify
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.front_end import FrontEndParts
from forerun.engine.loading import LoadProgress
from forerun.engine.parts import EngineParts
from forerun.server.app import create_app
from forerun.server.listening import HttpServer
from forerun.server.model_entry import EmbeddingServing, ModelEntry, Opened, ServedModel, Serving
from forerun.server.registry import ModelRegistry
from forerun.server.residency import Footprint
from forerun.server.seats import Seats
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings
from forerun.testing.served import IM_END, IM_START, PacedRunner, served_parts

MODEL = "fake"
HELLO_BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
Answer = Callable[[str], str]
"""What the model says to a prompt (as text, control tokens left out). A byte of 1 is the control token IM_START."""
CONTROL = 1


class ScriptedRunner(PacedRunner):
    """A model that says what the test tells it to."""

    def __init__(self, n_ctx: int, answer: Answer, seconds_per_step: float = 0.0) -> None:
        super().__init__(n_ctx, seconds_per_step)
        self._answer = answer
        self._verify = self._scripted

    def _scripted(
        self, logits: Any, drafts: Sequence[int], sampling: SamplingContext, max_tokens: int, drawn_from: Any
    ) -> Verified:
        del drafts
        history = sampling.history
        prompt, said = history.slice(0, history.prompt_tokens).tolist(), history.output_tokens
        answer = self._answer(_text(prompt)).encode()
        script = [*(IM_START if byte == CONTROL else byte for byte in answer), IM_END]
        row = np.full(logits.shape[-1], -30.0, np.float32)
        row[script[min(said, len(script) - 1)]] = 30.0
        return verify(row[None, :], (), sampling, max_tokens, drawn_from)


def _text(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


def scripted_parts(
    answer: Answer, *, n_ctx: int = 4096, seconds_per_step: float = 0.0, template: str | None = None
) -> EngineParts:
    """An engine whose model says what it is told to, in ChatML conversations or through a template of the test's."""
    parts = served_parts(n_ctx=n_ctx)
    writer = parts.chat_template
    if template is not None:
        writer = PromptWriter(ChatTemplate(template, "", ""), parts.vocabulary.control_tokens)
    config = SchedulerConfig(n_ctx=n_ctx, n_seq_max=32, max_num_seqs=8)
    return EngineParts(
        scheduler=Scheduler(config, parts.vocabulary),
        runner=ScriptedRunner(n_ctx, answer, seconds_per_step),
        vocabulary=parts.vocabulary,
        chat_template=writer,
        model_name="fake.gguf",
        n_ctx=n_ctx,
    )


class ServerUnderTest:
    """A server in this process, and an HTTP client for it."""

    def __init__(self, app: FastAPI, backend: Backend, engine: AsyncioEngine, client: httpx.AsyncClient) -> None:
        self.app = app
        self.backend = backend
        self.engine = engine
        self.client = client

    async def chat(self, content: str = "hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, **fields}
        return await self.client.post("/v1/completions", json=body)

    async def assert_idle(self) -> None:
        """No request runs or waits, within a second."""
        for _ in range(100):
            stats = await self.engine.stats()
            if (stats.running, stats.waiting) == (0, 0):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"still at work: {stats}")


def backend_for(
    engine: AsyncioEngine, settings: ServerSettings | None = None, *, max_running: int = 64, **options: Any
) -> Backend:
    """`options` are those of `serving_on`."""
    settings = settings or ServerSettings()
    model = options.pop("model", ServedModel(MODEL, engine.model_name, embeds=False))
    return loaded_backend(settings, serving_on(engine, settings, model, max_num_seqs=max_running, **options))


def loaded_backend(settings: ServerSettings, *loaded: Serving | EmbeddingServing) -> Backend:
    """A backend whose models are loaded; who opened their engines closes them."""
    entries = []
    for serving in loaded:
        entry = ModelEntry(serving.model, NeverLoaded())
        entry.loaded(Opened(serving, left_open))
        entries.append(entry)
    return Backend(settings, ModelRegistry(entries))


async def left_open() -> None:
    """Closes nothing."""


class NeverLoaded:
    """Implements ModelSource, of a model that is loaded already."""

    footprint = Footprint(0, 0)

    def open(self, model: ServedModel, progress: LoadProgress) -> Opened:
        raise AssertionError(f"{model.id} is loaded, and loaded again: {progress}")


def seats_of(backend: Backend) -> Seats:
    """Of its only model."""
    (entry,) = backend.models.entries
    assert isinstance(entry.serving, Serving)
    return entry.serving.seats


@asynccontextmanager
async def served(
    parts: EngineParts | FrontEndParts | None = None, settings: ServerSettings | None = None, **options: Any
) -> AsyncIterator[ServerUnderTest]:
    """A server that is called in this process, without a socket."""
    async with AsyncioEngine(parts or served_parts()) as engine:
        backend = backend_for(engine, settings, **options)
        app = create_app(backend)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield ServerUnderTest(app, backend, engine, client)


class ListeningServer:
    """A server on a port of this machine, on a thread of its own."""

    def __init__(self, http: HttpServer, engine: AsyncioEngine, backend: Backend) -> None:
        self.url = http.address
        self._http = http
        self.engine = engine
        self.backend = backend

    def stats(self) -> tuple[int, int]:
        """Running and waiting requests."""
        stats = asyncio.run(self.engine.stats())
        return stats.running, stats.waiting

    def stop(self) -> None:
        """As a signal would."""
        self._http.should_exit = True


@contextmanager
def listening(
    parts: EngineParts | FrontEndParts | None = None, settings: ServerSettings | None = None, **options: Any
) -> Iterator[ListeningServer]:
    """A server that is called through a socket: streams and disconnects are real."""
    engine = AsyncioEngine(parts or served_parts())
    backend = backend_for(engine, settings or ServerSettings(port=0), **options)
    ready = threading.Event()
    server = HttpServer(create_app(backend), backend, started=lambda _: ready.set())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        yield ListeningServer(server, engine, backend)
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
        asyncio.run(engine.close())


def events_of(text: str) -> list[Any]:
    """The data of an event stream: JSON values, and "[DONE]"."""
    datas = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def streamed_content(events: Sequence[Any], index: int = 0) -> str:
    deltas = [
        choice["delta"]
        for event in events
        if isinstance(event, dict)
        for choice in event.get("choices", ())
        if choice["index"] == index
    ]
    return "".join(delta.get("content") or "" for delta in deltas)
