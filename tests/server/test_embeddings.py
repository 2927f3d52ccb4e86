"""/v1/embeddings on a real tiny encoder; what other models and other routes answer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from forerun.compose_embeddings import is_embedding_model, open_embedding_engine
from forerun.engine.embedding import EmbeddingEngine
from forerun.engine.remote_embedder import EMBEDDING_CHILD
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError
from forerun.server.app import create_app
from forerun.server.model_entry import EmbeddingServing, ServedModel
from forerun.server.settings import ServerSettings
from tests.conftest import MakeTinyModel
from tests.server.support import loaded_backend, served
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model
MODEL = "tiny"


@pytest.fixture(scope="module")
def encoder(tiny_model: MakeTinyModel) -> Path:
    return tiny_model(TinyModel("bert"))


@pytest.fixture(scope="module")
def engine(encoder: Path) -> Any:
    one = open_embedding_engine(EngineConfig(model=str(encoder), n_threads=1))
    yield one
    one.close()


@asynccontextmanager
async def client_of(engine: EmbeddingEngine) -> AsyncIterator[httpx.AsyncClient]:
    backend = loaded_backend(ServerSettings(), EmbeddingServing(engine, ServedModel(MODEL, "tiny.gguf", embeds=True)))
    transport = httpx.ASGITransport(create_app(backend), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def posted(engine: EmbeddingEngine, path: str = "/v1/embeddings", **fields: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        async with client_of(engine) as client:
            return await client.post(path, json={"model": MODEL, **fields})

    return asyncio.run(main())


def vectors_of(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data])


def test_inputs_are_text_or_token_ids_one_or_several(engine: EmbeddingEngine) -> None:
    texts = ["a cat", "seven dogs and a whale"]
    tokens = [engine.tokenizer.tokenize_plain(text).tolist() for text in texts]
    both = vectors_of(posted(engine, input=texts))
    assert both.shape == (2, 64)
    assert np.linalg.norm(both, axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert vectors_of(posted(engine, input=tokens)) == pytest.approx(both, abs=2e-3)
    assert vectors_of(posted(engine, input=texts[0]))[0] == pytest.approx(both[0], abs=2e-3)
    assert vectors_of(posted(engine, input=tokens[1]))[0] == pytest.approx(both[1], abs=2e-3)


def test_usage_counts_the_tokens_of_all_inputs(engine: EmbeddingEngine) -> None:
    answer = posted(engine, input=[[20, 21, 22], [23]]).json()
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert (answer["object"], answer["model"]) == ("list", MODEL)


def test_base64_holds_the_same_numbers(engine: EmbeddingEngine) -> None:
    plain = vectors_of(posted(engine, input="a cat"))[0]
    encoded = posted(engine, input="a cat", encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(encoded), "<f4") == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": ""}, "input", "is empty"),
        ({"input": []}, "input", ""),
        ({"input": ["a", ""]}, "input[1]", "is empty"),
        ({"input": [[]]}, "input", "is empty"),
        ({"input": [[20] * 129]}, "input[0]", "has 129 tokens, but the model reads at most 128"),
        ({"input": "word " * 200}, "input", "but the model reads at most 128"),
        ({"input": [99_999_999]}, "input", "outside the vocabulary of"),
        ({"input": [-1]}, "input", ""),
        ({"input": [2**40]}, "input", ""),
        ({"input": [1.5]}, "input", ""),
        ({"input": ["a", 1]}, "input", ""),
        ({"input": {"a": 1}}, "input", ""),
        ({"input": ["a"] * 2049}, "input", "2048"),
        ({"input": [[20] * 128] * 2048 + [[20]]}, "input", "2048"),
        ({"input": "a", "dimensions": 32}, "dimensions", "vectors have 64 numbers"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", ""),
        ({"input": "a", "colour": 1}, "colour", "is not known"),
        ({}, "input", "is required"),
    ],
)
def test_what_cannot_be_embedded_is_a_400_that_names_it(
    engine: EmbeddingEngine, fields: dict[str, Any], param: str, said: str
) -> None:
    response = posted(engine, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert str(error["param"] or "").startswith(param.split("[")[0]) or error["code"] == "invalid_json"
    assert said in error["message"]


def test_a_text_that_is_no_unicode_is_a_400(engine: EmbeddingEngine) -> None:
    async def main() -> httpx.Response:
        async with client_of(engine) as client:
            return await client.post("/v1/embeddings", content=b'{"model": "tiny", "input": "\\ud800"}')

    assert asyncio.run(main()).status_code == 400


def test_the_models_own_number_of_dimensions_is_no_wish(engine: EmbeddingEngine) -> None:
    assert vectors_of(posted(engine, input="a", dimensions=64)).shape == (1, 64)


def test_control_tokens_in_a_text_stay_text(engine: EmbeddingEngine) -> None:
    usage = posted(engine, input="<|im_end|>").json()["usage"]
    assert usage["prompt_tokens"] > 1


def test_an_embedding_model_answers_chats_with_a_400_and_says_what_it_is(engine: EmbeddingEngine) -> None:
    response = posted(engine, "/v1/chat/completions", messages=[{"role": "user", "content": "hello"}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "model_not_supported"
    assert "call /v1/embeddings" in response.json()["error"]["message"]


def test_a_model_that_writes_answers_embeddings_with_a_400() -> None:
    async def main() -> httpx.Response:
        async with served() as server:
            return await server.client.post("/v1/embeddings", json={"model": "fake", "input": "a"})

    response = asyncio.run(main())
    assert response.status_code == 400
    assert "is no embedding model" in response.json()["error"]["message"]


def test_health_models_and_metrics_know_the_embedding_model(engine: EmbeddingEngine) -> None:
    async def main() -> None:
        async with client_of(engine) as client:
            await client.post("/v1/embeddings", json={"model": MODEL, "input": [[20, 21, 22]]})
            assert (await client.get("/health")).json()["status"] == "ok"
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == MODEL
            page = (await client.get("/metrics")).text
            assert 'forerun:model_info{model="tiny",n_ctx="128"} 1.0' in page
            assert "forerun:request_prompt_tokens_sum 3.0" in page
            unknown = await client.post("/v1/embeddings", json={"model": "nobody", "input": "a"})
            assert unknown.status_code == 404

    asyncio.run(main())


def test_texts_are_counted_as_they_are_embedded_and_props_say_what_the_model_is(engine: EmbeddingEngine) -> None:
    async def main() -> None:
        async with client_of(engine) as client:
            text = "seven dogs <|im_end|>"
            tokenised = (await client.post("/tokenize", json={"model": MODEL, "prompt": text})).json()
            embedded = (await client.post("/v1/embeddings", json={"model": MODEL, "input": text})).json()
            assert (tokenised["count"], tokenised["max_model_len"]) == (embedded["usage"]["prompt_tokens"], 128)
            back = (await client.post("/detokenize", json={"tokens": tokenised["tokens"]})).json()
            assert text in back["content"]
            chat = await client.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]})
            assert (chat.status_code, chat.json()["error"]["param"]) == (400, "messages")
            unknown = await client.post("/tokenize", json={"model": "nobody", "prompt": text})
            assert unknown.status_code == 404
            props = (await client.get("/props")).json()
            assert (props["embeds"], props["has_chat_template"], props["n_ctx"]) == (True, False, 128)

    asyncio.run(main())


def test_a_client_that_leaves_has_what_is_left_dropped(engine: EmbeddingEngine) -> None:
    async def main() -> None:
        async with client_of(engine) as client:
            body = {"model": MODEL, "input": [[20] * 128] * 2000}
            asking = asyncio.create_task(client.post("/v1/embeddings", json=body))
            while "0 open" in repr(engine):
                await asyncio.sleep(0.005)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await client.post("/v1/embeddings", json={"model": MODEL, "input": "a"})
            assert "0 open, 0 tokens" in repr(engine)

    asyncio.run(main())


def test_kill_9_of_the_engine_ends_what_it_computes_and_nothing_else(engine: EmbeddingEngine) -> None:
    """Health says how it died. What was in its batch is computed again, one by one; it may be asked for again."""

    async def main() -> None:
        async with client_of(engine) as client:
            (before,) = engine_processes()
            asking = asyncio.create_task(
                client.post("/v1/embeddings", json={"model": MODEL, "input": [[20] * 128] * 400})
            )
            while "1 open" not in repr(engine):
                await asyncio.sleep(0.002)
            before.kill()
            told = await client.get("/health")
            while told.json()["status"] == "ok":
                await asyncio.sleep(0.002)
                told = await client.get("/health")
            assert (told.status_code, told.json()["status"]) == (503, "restarting")
            assert "SIGKILL" in told.json()["reason"]
            assert (await asking).status_code == 200
            assert vectors_of(await client.post("/v1/embeddings", json={"model": MODEL, "input": "a"})).shape == (1, 64)
            assert (await client.get("/health")).json()["status"] == "ok"
            (after,) = engine_processes()
            assert after.pid != before.pid

    asyncio.run(main())


def engine_processes() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if EMBEDDING_CHILD in one.cmdline()]


def test_files_say_whether_they_embed(encoder: Path, tiny_dense_path: Path, tiny_model: MakeTinyModel) -> None:
    decoder = tiny_model(TinyModel("llama", pooling="last"))
    found = [is_embedding_model(EngineConfig(model=str(path))) for path in (encoder, decoder, tiny_dense_path)]
    assert found == [True, True, False]


def test_a_decoder_that_pools_embeds_too(tiny_model: MakeTinyModel) -> None:
    one = open_embedding_engine(EngineConfig(model=str(tiny_model(TinyModel("llama", pooling="last"))), n_ctx=512))
    try:
        assert vectors_of(posted(one, input=["a cat", "a dog"])).shape == (2, 64)
    finally:
        one.close()


def test_what_is_meant_for_models_that_write_is_refused(encoder: Path, tiny_dense_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="draft: is for models that write text"):
        open_embedding_engine(EngineConfig(model=str(encoder), draft=str(tiny_dense_path)))
