"""Recordings in Chat Completions: they stand where they were sent, and what is wrong with one is a 400 of its name."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from forerun.core.prompt import PromptLayout, PromptSegment, as_tokens
from forerun.media.kind import MediaKind
from forerun.media.limits import MediaLimits
from forerun.media.loading import MediaLoader
from forerun.testing import FakeMediaReader
from forerun.testing.media import SPAN_EMBEDDINGS
from forerun.testing.served import IM_END, IM_START, served_parts
from tests.media.pictures import RED, plain
from tests.media.sounds import recording, tone
from tests.server.support import MODEL, events_of, served, streamed_content
from tests.server.test_media import BEFORE, chat, image, layout_of, text, user

BOTH = (MediaKind.IMAGE, MediaKind.AUDIO)


@pytest.fixture(scope="module")
def loader() -> Iterator[MediaLoader]:
    one = MediaLoader(MediaLimits(max_audio_seconds=40.0, max_seconds=45.0))
    yield one
    one.close()


def hearing(loader: MediaLoader, *kinds: MediaKind) -> Any:
    return served(replace(served_parts(), media=FakeMediaReader(kinds=kinds or BOTH)), media=loader)


def audio(file: bytes, form: str = "wav") -> dict[str, Any]:
    """A part of OpenAI's chat."""
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(file).decode(), "format": form}}


def span(pitch: float, index: int = 0, seconds: float = 0.5) -> PromptSegment:
    return PromptSegment.media(f"fake:{tone(pitch, seconds).digest}:{index}", SPAN_EMBEDDINGS, SPAN_EMBEDDINGS)


def written(*parts: int | str | PromptSegment) -> PromptLayout:
    segments = [
        part
        if isinstance(part, PromptSegment)
        else PromptSegment.text(as_tokens([part] if isinstance(part, int) else list(part.encode())))
        for part in parts
    ]
    return PromptLayout(segments)


def test_recordings_stand_where_they_were_sent_beside_images(loader: MediaLoader) -> None:
    async def main() -> None:
        async with hearing(loader) as server:
            parts = (text("First:"), audio(recording(440)), image(plain(RED)), audio(recording(880)), text("Well?"))
            layout = await layout_of(server, chat(user(*parts)))
            picture = next(one for one in layout.segments if one.media_span and one.logical_tokens == 2)
            said = ("user\n", "First:", span(440), picture, span(880), "Well?")
            assert layout == written(IM_START, *said, IM_END, "\n", IM_START, "assistant\n")

    asyncio.run(main())


def test_a_long_recording_is_several_spans(loader: MediaLoader) -> None:
    async def main() -> None:
        async with hearing(loader) as server:
            layout = await layout_of(server, chat(user(audio(recording(440, 31, "FLAC"), "flac"))))
            spans = [one for one in layout.segments if one.media_span is not None]
            assert spans == [span(440, 0, 31), span(440, 1, 31)]

    asyncio.run(main())


def test_a_recording_that_a_tool_gave_stands_in_its_result(loader: MediaLoader) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "listen", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Listen."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("Heard:"), audio(recording(440))]},
    ]

    async def main() -> None:
        async with hearing(loader) as server:
            layout = await layout_of(server, chat(messages))
            assert [one for one in layout.segments if one.media_span is not None] == [span(440)]

    asyncio.run(main())


def test_recordings_are_answered_streamed_and_reused_where_every_sample_is_the_same(loader: MediaLoader) -> None:
    async def main() -> None:
        async with hearing(loader) as server:

            async def cached(file: bytes) -> int:
                body = {"model": MODEL, "max_tokens": 4, "messages": user(audio(file), text("What is it?"))}
                response = await server.client.post("/v1/chat/completions", json=body)
                assert response.status_code == 200
                found: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                return found

            alike = [recording(440), recording(441)]
            assert [await cached(file) <= BEFORE for file in alike] == [True, True]
            assert [await cached(file) >= BEFORE + SPAN_EMBEDDINGS for file in alike] == [True, True]
            assert await cached(recording(440, form="FLAC")) >= BEFORE + SPAN_EMBEDDINGS, "the same samples"
            body = {"model": MODEL, "messages": user(audio(recording(440))), "max_tokens": 5, "ignore_eos": True}
            whole = await server.client.post("/v1/chat/completions", json={**body, "temperature": 0})
            streamed = await server.client.post("/v1/chat/completions", json={**body, "temperature": 0, "stream": True})
            assert streamed_content(events_of(streamed.text)) == whole.json()["choices"][0]["message"]["content"]
            assert (await server.client.get("/props")).json()["modalities"] == {"vision": True, "audio": True}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("part", "field", "said"),
    [
        (audio(b""), "input_audio.data", "is empty"),
        (audio(plain()), "input_audio.data", "is no recording"),
        (audio(recording()[:30]), "input_audio.data", "is damaged"),
        (audio(recording(seconds=0.05)), "input_audio.data", "lasts 0.05 s, at least 0.1 s"),
        (audio(recording(seconds=41, form="FLAC")), "input_audio.data", "lasts 41 s, at most 40 s"),
        ({"type": "input_audio", "input_audio": {"data": "%", "format": "wav"}}, "input_audio.data", "is no base64"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "ogg"}}, "input_audio.format", "'wav'"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "input_audio.data", "required"),
        ({"type": "input_audio"}, "input_audio", "is required for the type input_audio"),
        ({**text("a"), "input_audio": audio(b"")["input_audio"]}, "input_audio", "is for parts of type input_audio"),
        ({**image(b""), "input_audio": audio(b"")["input_audio"]}, "input_audio", "is for parts of type input_audio"),
        ({**audio(b""), "image_url": {"url": "data:"}}, "image_url", "is for parts of type image_url"),
    ],
)
def test_case_m6_what_is_no_recording_is_a_400_that_names_the_part_and_text_goes_on(
    loader: MediaLoader, part: dict[str, Any], field: str, said: str
) -> None:
    body = {"model": MODEL, "max_tokens": 2, "messages": user(text("a"), audio(recording()), part)}

    async def main() -> None:
        async with hearing(loader) as server:
            response = await server.client.post("/v1/chat/completions", json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, f"messages[0].content[2].{field}")
            assert said in error["message"]
            assert (await server.chat()).status_code == 200
            await server.assert_idle()

    asyncio.run(main())


def test_recordings_of_a_request_last_so_long_at_most(loader: MediaLoader) -> None:
    parts = [audio(recording(pitch, 30, "FLAC"), "flac") for pitch in (440, 880)]

    async def main() -> None:
        async with hearing(loader) as server:
            body = {"model": MODEL, "messages": user(*parts)}
            error = (await server.client.post("/v1/chat/completions", json=body)).json()["error"]
            assert "brings the request's recordings to 60 s, at most 45 s are heard" in error["message"]
            assert error["param"].endswith("input_audio.data")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kinds", "said"),
    [((), "is a recording, and this model reads text alone"), ((MediaKind.IMAGE,), "projector reads images alone")],
)
def test_case_m6_a_model_that_does_not_hear_refuses_recordings_by_name_and_reads_none(
    loader: MediaLoader, kinds: tuple[MediaKind, ...], said: str
) -> None:
    body = {"model": MODEL, "messages": user(text("a"), audio(b"not even looked at"))}

    async def main() -> None:
        async with hearing(loader, *kinds) if kinds else served(media=loader) as server:
            error = (await server.client.post("/v1/chat/completions", json=body)).json()["error"]
            assert error["param"] == "messages[0].content[1].input_audio.data"
            assert said in error["message"]
            assert (await server.chat()).status_code == 200

    asyncio.run(main())


def test_a_model_that_only_hears_refuses_images(loader: MediaLoader) -> None:
    async def main() -> None:
        async with hearing(loader, MediaKind.AUDIO) as server:
            body = {"model": MODEL, "messages": user(image(plain()))}
            error = (await server.client.post("/v1/chat/completions", json=body)).json()["error"]
            assert "is an image, and this model's projector reads recordings alone" in error["message"]

    asyncio.run(main())


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_recordings_belong_to_users_and_tools(loader: MediaLoader, role: str) -> None:
    messages = [{"role": role, "content": [audio(recording())]}, {"role": "user", "content": "Hm"}]

    async def main() -> None:
        async with hearing(loader) as server:
            error = (
                await server.client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
            ).json()["error"]
            assert error["param"] == "messages[0].content[0].input_audio"
            assert f"user or of tools, not of '{role}'" in error["message"]

    asyncio.run(main())
