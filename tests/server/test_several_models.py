"""Several models behind one server: each under its name, loaded when asked for, adapters by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from forerun.errors import ModelLoadError
from forerun.server.app import create_app
from forerun.server.model_entry import ModelEntry, ServedModel
from forerun.server.registry import ModelRegistry
from forerun.server.serving import Backend
from forerun.server.settings import ServerSettings
from forerun.testing.served import served_parts
from tests.server.loading import FakeSource
from tests.server.support import events_of

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


class SeveralModels:
    """A server with the models a (with two adapters) and b, of which one is in memory at a time."""

    def __init__(self, client: httpx.AsyncClient, backend: Backend, sources: dict[str, FakeSource]) -> None:
        self.client = client
        self.backend = backend
        self.sources = sources
        self.done = sources["a"].done

    async def chat(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True, **fields}
        return await self.client.post(CHAT, json=body)

    async def get(self, path: str) -> Any:
        return (await self.client.get(path)).json()

    def entry(self, name: str) -> ModelEntry:
        return self.backend.called(name).entry


@asynccontextmanager
async def several(**options: Any) -> AsyncIterator[SeveralModels]:
    done: list[str] = []
    sources = {name: FakeSource(name, done) for name in "ab"}
    for source in sources.values():
        source.is_free.set()
    models = [ServedModel("a", "a.gguf", adapters=("sql", "law"), embeds=False), ServedModel("b", embeds=False)]
    entries = [ModelEntry(model, sources[model.id]) for model in models]
    registry = ModelRegistry(entries, **{"max_loaded": 1, **options})
    backend = Backend(ServerSettings(), registry)
    transport = httpx.ASGITransport(create_app(backend), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=10) as client:
        try:
            yield SeveralModels(client, backend, sources)
        finally:
            await registry.close()


def test_each_request_is_answered_by_the_model_it_names() -> None:
    async def main() -> None:
        async with several() as server:
            for name in ("a", "b", "a.gguf"):
                answer = await server.chat(name)
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == name[0]
            assert server.done == ["load a", "close a", "load b", "close b", "load a"]
            unknown = await server.chat("c")
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            assert "'a', 'a.gguf', 'b', 'a:sql', 'a:law'" in unknown.json()["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2, "store": False}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [97]}),
        ("/apply-template", {"messages": MESSAGES}),
        ("/cache/lookup", {"prompt": "a"}),
        ("/cache/clear", {}),
    ],
)
def test_every_route_loads_the_model_it_is_about(path: str, body: Any) -> None:
    async def main() -> None:
        async with several() as server:
            answer = await server.client.post(path, json={**body, "model": "b"})
            assert answer.status_code == 200, answer.text
            assert server.done == ["load b"]
            assert server.entry("b").leases == 0
            nameless = await server.client.post(path, json=body)
            assert nameless.status_code == 400
            assert "model" in str(nameless.json())

    asyncio.run(main())


def test_a_stream_is_whole_though_another_model_is_asked_for_meanwhile() -> None:
    async def main() -> None:
        async with several() as server:
            server.sources["a"].parts = lambda: served_parts(seconds_per_step=0.005)
            streaming = asyncio.create_task(server.chat("a", stream=True, max_tokens=60))
            while not server.entry("a").leases:
                await asyncio.sleep(0.002)
            other = await server.chat("b")
            assert streaming.done(), "the model was taken from a stream"
            assert events_of((await streaming).text)[-1] == "[DONE]"
            assert other.status_code == 200
            assert server.done == ["load a", "close a", "load b"]

    asyncio.run(main())


def test_health_models_metrics_and_props_say_how_each_model_stands() -> None:
    async def main() -> None:
        async with several() as server:
            assert await server.get("/health") == {
                "status": "ok",
                "models": {"a": {"status": "unloaded"}, "b": {"status": "unloaded"}},
            }
            await server.chat("b")
            server.sources["a"].is_free.clear()
            waiting = asyncio.create_task(server.chat("a"))
            while server.entry("a").health.progress != 0.25:
                await asyncio.sleep(0.002)
            health = await server.get("/health")
            loading = {"phase": "target", "what": "a", "share": 0.25}
            assert health == {
                "status": "ok",  # b would be loaded and answer
                "models": {"a": {"status": "loading", "loading": loading}, "b": {"status": "unloaded"}},
            }
            states = {card["id"]: card["status"] for card in (await server.get("/v1/models"))["data"]}
            assert states == {"a": "loading", "a:sql": "loading", "a:law": "loading", "b": "unloaded"}
            server.sources["a"].is_free.set()
            assert (await waiting).status_code == 200
            page = (await server.client.get("/metrics")).text
            assert 'forerun:engine_state{model="a",state="ready"} 1.0' in page
            assert 'forerun:engine_state{model="b",state="unloaded"} 1.0' in page
            assert 'forerun:model_loads_total{model="b"} 1.0' in page
            assert 'forerun:model_info{model="a",n_ctx="65536"} 1.0' in page
            assert (await server.get("/props"))["models"] == {"a": "ok", "b": "unloaded"}
            props = await server.get("/props?model=b")
            assert (props["model"], props["n_ctx"]) == ("b", None)

    asyncio.run(main())


def test_counters_of_a_model_go_on_from_where_they_were_when_it_is_loaded_again() -> None:
    async def main() -> None:
        async with several() as server:
            await server.chat("a")
            await server.chat("b")
            page = (await server.client.get("/metrics")).text
            assert 'forerun:generation_tokens_total{model="a",source="target"} 4.0' in page
            assert 'forerun:kv_cells{model="b"}' in page
            assert 'forerun:kv_cells{model="a"}' not in page
            await server.chat("a")
            page = (await server.client.get("/metrics")).text
            assert 'forerun:generation_tokens_total{model="a",source="target"} 8.0' in page
            assert 'forerun:engine_restarts_total{model="a"} 0.0' in page
            assert 'forerun:model_loads_total{model="a"} 2.0' in page

    asyncio.run(main())


def test_adapters_are_listed_as_models_of_their_own_as_openai_s_clients_expect() -> None:
    async def main() -> None:
        async with several() as server:
            cards = (await server.get("/v1/models"))["data"]
            assert [(card["id"], card["parent"]) for card in cards] == [
                ("a", None),
                ("a:sql", "a"),
                ("a:law", "a"),
                ("b", None),
            ]
            for name in ("a:sql", "sql"):
                card = await server.get(f"/v1/models/{name}")
                assert (card["id"], card["parent"]) == ("a:sql", "a")

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_is_refused_with_the_reason_and_the_others_answer() -> None:
    async def main() -> None:
        async with several() as server:
            server.sources["a"].error = ModelLoadError("a.gguf: too little memory")
            refused = await server.chat("a")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_loaded")
            assert "a.gguf: too little memory" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 0
            assert (await server.chat("b")).status_code == 200
            health = await server.get("/health")
            assert (health["status"], health["models"]["a"]["status"]) == ("ok", "failed")

    asyncio.run(main())


def test_a_server_whose_only_model_loads_makes_requests_wait_and_is_not_ok_yet() -> None:
    async def main() -> None:
        source = FakeSource("a", [])
        backend = Backend(ServerSettings(), ModelRegistry([ModelEntry(ServedModel("a"), source)]))
        transport = httpx.ASGITransport(create_app(backend), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=10) as client:
            body = {"model": "a", "messages": MESSAGES, "max_tokens": 2}
            asking = asyncio.create_task(client.post(CHAT, json=body))
            while backend.health.progress != 0.25:
                await asyncio.sleep(0.002)
            response = await client.get("/health")
            assert (response.status_code, response.json()["status"]) == (503, "loading")
            source.is_free.set()
            assert (await asking).status_code == 200
            assert (await client.get("/health")).status_code == 200
            await backend.models.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2, "store": False}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}),
    ],
)
def test_an_adapter_is_selected_by_the_model_s_name_in_every_api(path: str, body: Any) -> None:
    async def main() -> None:
        async with several() as server:
            found: list[Any] = []
            await server.chat("a")
            serving = server.entry("a").serving
            assert serving is not None
            start = serving.service.start  # type: ignore[union-attr]

            async def watched(job: Any) -> Any:
                found.append(job.params.adapters)
                return await start(job)

            serving.service.start = watched  # type: ignore[union-attr, method-assign]
            await server.client.post(path, json={**body, "model": "a:law"})
            both = await server.client.post(path, json={**body, "model": "a:law", "adapters": {"sql": 1.0}})
            assert (both.status_code, len(found)) == (400, 1)
            assert "selects one already" in str(both.json())
            assert found == [{"law": 1.0}]

    asyncio.run(main())
