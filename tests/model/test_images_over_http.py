"""Images and recordings from an HTTP body to a real projector and back, on a generated model: what it says is noise."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from forerun.compose import build
from forerun.engine_config import EngineConfig
from forerun.media.loading import MediaLoader
from forerun.native.encoder import MediaEncoder
from forerun.native.runner import LlamaRunner
from tests.conftest import MakeTinyModel
from tests.media.pictures import BLUE, GREEN, RED, YELLOW, encoded, plain
from tests.media.sounds import recording
from tests.server.support import MODEL, ServerUnderTest, served
from tests.support.tiny_models import TinyModel
from tests.support.tiny_projector import TinyProjector, build_projector

pytestmark = pytest.mark.model

SIZE = (112, 84)
QUESTION = "What do you see in this picture, and which colour has it?"


@pytest.fixture(scope="module")
def model_path(tiny_model: MakeTinyModel) -> Path:
    return tiny_model(TinyModel(kind="qwen2vl"))


@dataclass
class Looking:
    """A server whose model looks at images, and what encodes them."""

    server: ServerUnderTest
    encoder: MediaEncoder

    async def chat(self, messages: Sequence[Any], **fields: Any) -> tuple[str, Any]:
        """The answer and its usage."""
        body = {"model": MODEL, "messages": messages, "max_tokens": 6, "ignore_eos": True, "temperature": 0, **fields}
        response = await self.server.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        return answer["choices"][0]["message"]["content"], answer["usage"]

    async def computed(self, messages: Sequence[Any]) -> int:
        """Tokens of a prompt that had to be computed."""
        _, usage = await self.chat(messages)
        return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])

    async def refused(self, body: Any) -> Any:
        """Which part of a request is wrong."""
        response = await self.server.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400, response.text
        return response.json()["error"]["param"]


@asynccontextmanager
async def looking(model: Path, *, hears: bool = False) -> AsyncIterator[Looking]:
    projector = str(build_projector(TinyProjector(hears=hears)))
    parts = build(EngineConfig(model=str(model), projector=projector, n_ctx=2048, n_threads=1, cache_ram=0))
    assert isinstance(parts.runner, LlamaRunner)
    assert parts.runner.encoder is not None
    loader = MediaLoader()
    try:
        async with served(parts, media=loader) as server:
            yield Looking(server, parts.runner.encoder)
    finally:
        loader.close()


def image(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:;base64,{base64.b64encode(file).decode()}"}}


def asked(*files: bytes) -> list[Any]:
    return [{"role": "user", "content": [*map(image, files), {"type": "text", "text": QUESTION}]}]


def test_case_m3_an_image_of_an_earlier_turn_is_neither_encoded_nor_computed_again(model_path: Path) -> None:
    photo = encoded(Image.effect_noise((448, 448), 80).convert("RGB"), "JPEG")

    async def main() -> None:
        async with looking(model_path) as one:
            messages, computed = asked(photo), []
            for turn in range(3):
                said, usage = await one.chat(messages)
                cold, _ = await one.chat(messages, cache_prompt=False)
                assert said == cold
                computed.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"And number {turn}?"}]
            assert computed[0] > 256, "the image has 256 embeddings"
            assert max(computed[1:]) < 60
            assert one.encoder.encoded == 1
            other = [{"role": "system", "content": "Look closely."}, *asked(photo)]
            assert await one.computed(other) > 256
            assert one.encoder.encoded == 1, "in another conversation it is computed, not encoded"

    asyncio.run(main())


def test_case_m1_images_of_one_size_share_nothing_and_equal_ones_all(model_path: Path) -> None:
    files = [plain(colour, SIZE) for colour in (RED, GREEN, BLUE, YELLOW)]

    async def main() -> None:
        async with looking(model_path) as one:
            first = [await one.chat(asked(file)) for file in files]
            assert len({said for said, _ in first}) == len(files)
            embeddings = 12
            for file, (_, usage) in zip(files, first, strict=True):
                before_image = usage["prompt_tokens"] - embeddings - len(QUESTION) // 8
                assert usage["prompt_tokens_details"]["cached_tokens"] <= before_image
                assert await one.computed(asked(file)) == 1
            encoded_so_far = one.encoder.encoded
            other_form = plain(RED, SIZE, "WEBP", lossless=True)
            assert await one.computed(asked(other_form)) == 1, "the same pixels from another file"
            assert one.encoder.encoded == encoded_so_far

    asyncio.run(main())


def test_case_m6_an_image_that_is_cut_off_is_a_400_and_the_next_request_is_answered(model_path: Path) -> None:
    photo = encoded(Image.effect_noise((300, 300), 80), "JPEG")

    async def main() -> None:
        async with looking(model_path) as one:
            body = {"model": MODEL, "messages": asked(plain(RED, SIZE), photo[:2000]), "max_tokens": 2}
            response = await one.server.client.post("/v1/chat/completions", json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (
                400,
                "messages[0].content[1].image_url",
            )
            said, _ = await one.chat([{"role": "user", "content": "Hello"}])
            assert said
            large = asked(plain(RED, (1960, 1960)))
            response = await one.server.client.post("/v1/chat/completions", json={**body, "messages": large})
            assert (response.status_code, response.json()["error"]["param"]) == (
                400,
                "messages[0].content[0].image_url",
            )
            await one.server.assert_idle()

    asyncio.run(main())


def test_a_recording_beside_an_image_is_encoded_once_over_three_turns(model_path: Path) -> None:
    heard = {"data": base64.b64encode(recording(440, 2.0, "MP3", 44_100)).decode(), "format": "mp3"}
    content = [image(plain(RED, SIZE)), {"type": "input_audio", "input_audio": heard}, {"type": "text", "text": "So?"}]

    async def main() -> None:
        async with looking(model_path, hears=True) as one:
            messages: list[Any] = [{"role": "user", "content": content}]
            for turn in range(3):
                said, usage = await one.chat(messages)
                cold, _ = await one.chat(messages, cache_prompt=False)
                assert said == cold
                computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                assert turn == 0 or computed < 60
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"And number {turn}?"}]
            assert one.encoder.encoded == 2
            await one.server.assert_idle()

    asyncio.run(main())
