"""Images through every API: they stand in the prompt where they were sent, and what is wrong with one is a 400 that
names it. Cases M1, M6 and E4 as far as the server has part in them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from forerun.cli.serve_options import ServeOptions
from forerun.compose_server import media_loader
from forerun.core.prompt import PromptLayout, PromptSegment, as_tokens
from forerun.errors import InvalidConfigError, InvalidRequestError
from forerun.media.limits import MediaLimits
from forerun.media.loading import MediaLoader
from forerun.media.picture import Picture
from forerun.server.anthropic.job import counted_job, message_job
from forerun.server.chat_jobs import chat_job
from forerun.server.jobs import ChatJob
from forerun.server.model_entry import Serving
from forerun.server.responses.job import response_job
from forerun.server.settings import ServerSettings
from forerun.server.wire.chat import ChatRequest
from forerun.server.wire.messages import MessagesRequest
from forerun.server.wire.responses import ResponsesRequest
from forerun.testing import FakeMediaReader
from forerun.testing.served import IM_END, IM_START, served_parts
from tests.media.pictures import BLUE, GREEN, RED, YELLOW, Colour, encoded, huge_png, plain, quarters
from tests.server.support import MODEL, ServerUnderTest, events_of, served, streamed_content

SIZE = (56, 28)  # two embeddings of the fake projector
BEFORE = 1 + len("user\n")
"""Tokens before what a user says."""


@pytest.fixture(scope="module")
def loader() -> Iterator[MediaLoader]:
    one = MediaLoader()
    yield one
    one.close()


def seeing(loader: MediaLoader, **options: Any) -> Any:
    return served(replace(served_parts(), media=FakeMediaReader()), media=loader, **options)


def base64_of(file: bytes) -> str:
    return base64.b64encode(file).decode()


def image(file: bytes) -> dict[str, Any]:
    """A part of OpenAI's chat."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(file)}"}}


def block(file: bytes, **more: Any) -> dict[str, Any]:
    """A block of Anthropic's messages."""
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(file)}
    return {"type": "image", "source": source, **more}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def prompt(*parts: int | str | Colour) -> PromptLayout:
    """A layout of control tokens, texts, and pictures of one colour."""
    segments = []
    for part in parts:
        if isinstance(part, tuple):
            picture = Picture.of(*SIZE, bytes(part) * (SIZE[0] * SIZE[1]))
            segments.append(PromptSegment.media(f"fake:{picture.digest}", 2, 2))
        else:
            segments.append(PromptSegment.text(as_tokens([part] if isinstance(part, int) else list(part.encode()))))
    return PromptLayout(segments)


def asked(*parts: str | Colour) -> PromptLayout:
    """What one message of a user becomes."""
    return prompt(IM_START, "user\n", *parts, IM_END, "\n", IM_START, "assistant\n")


async def layout_of(server: ServerUnderTest, job: ChatJob) -> PromptLayout:
    (entry,) = server.backend.models.entries
    serving = entry.serving
    assert isinstance(serving, Serving)
    (layout,) = await serving.service.layouts(job)
    return layout


def chat(messages: Any) -> ChatJob:
    return chat_job(ChatRequest.model_validate({"model": MODEL, "messages": messages}), "")


def respond(items: Any) -> ChatJob:
    return response_job(ResponsesRequest.model_validate({"model": MODEL, "input": items}), "")


def message(messages: Any) -> ChatJob:
    body = {"model": MODEL, "messages": messages, "max_tokens": 5}
    return message_job(MessagesRequest.model_validate(body), "")


def test_an_image_stands_where_it_was_sent_in_every_api(loader: MediaLoader) -> None:
    red, blue = plain(RED), plain(BLUE)
    wanted = asked("Look:", RED, "and", BLUE, "Well?")
    input_image = {"type": "input_image", "image_url": f"data:;base64,{base64_of(red)}", "detail": "high"}
    other_image = {**input_image, "image_url": f"data:;base64,{base64_of(blue)}"}
    at = {"type": "image", "source": {"type": "url", "url": f"data:;base64,{base64_of(blue)}"}}

    async def main() -> None:
        async with seeing(loader) as server:
            jobs = [
                chat(user(text("Look:"), image(red), text("and"), image(blue), text("Well?"))),
                respond(
                    user(
                        {"type": "input_text", "text": "Look:"},
                        input_image,
                        {"type": "input_text", "text": "and"},
                        other_image,
                        {"type": "input_text", "text": "Well?"},
                    )
                ),
                message(user(text("Look:"), block(red), text("and"), at, text("Well?"))),
            ]
            for job in jobs:
                assert await layout_of(server, job) == wanted

    asyncio.run(main())


def test_an_image_that_a_tool_gave_stands_in_its_result_in_every_api(loader: MediaLoader) -> None:
    red = plain(RED)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    of_chat = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("Seen:"), image(red)]},
    ]
    of_responses = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": "Seen:"},
                {"type": "input_image", "image_url": f"data:;base64,{base64_of(red)}"},
            ],
        },
    ]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text("Seen:"), block(red)]}
    of_messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
        {"role": "user", "content": [result]},
    ]

    async def main() -> None:
        async with seeing(loader) as server:
            layouts = [
                await layout_of(server, job) for job in (chat(of_chat), respond(of_responses), message(of_messages))
            ]
            assert layouts[0] == layouts[1] == layouts[2]
            assert [segment.media_span is not None for segment in layouts[0].segments] == [False, True, False]
            failed = [{**result, "is_error": True, "content": [block(red)]}]
            layout = await layout_of(server, message([*of_messages[:2], {"role": "user", "content": failed}]))
            assert b"Error: " in bytes(token for token in layout.text_tokens if token < 256)

    asyncio.run(main())


def test_images_are_answered_streamed_counted_and_pinned(loader: MediaLoader) -> None:
    messages = user(block(plain(RED), cache_control={"type": "ephemeral"}), text("What is it?"))
    fields: dict[str, Any] = {"model": MODEL, "messages": messages}

    async def main() -> None:
        async with seeing(loader) as server:
            counted = await server.client.post("/v1/messages/count_tokens", json=fields)
            tokens = asked(RED, "What is it?").logical_tokens
            assert counted.json() == {"input_tokens": tokens}
            answered = await server.client.post("/v1/messages", json={**fields, "max_tokens": 5})
            assert answered.status_code == 200
            assert answered.json()["usage"]["input_tokens"] == tokens
            body = {"model": MODEL, "messages": user(image(plain(RED))), "max_tokens": 5, "ignore_eos": True}
            whole = await server.client.post("/v1/chat/completions", json={**body, "temperature": 0})
            streamed = await server.client.post("/v1/chat/completions", json={**body, "temperature": 0, "stream": True})
            assert streamed_content(events_of(streamed.text)) == whole.json()["choices"][0]["message"]["content"]
            shown = await server.client.post("/apply-template", json={"messages": user(image(plain(RED)), text("Hm"))})
            assert shown.json() == {"prompt": "<|im_start|>user\nHm<|im_end|>\n<|im_start|>assistant\n"}
            lookup = await server.client.post("/cache/lookup", json={"messages": user(image(plain(RED)))})
            assert lookup.json()["cached_tokens"] >= BEFORE + 2

    asyncio.run(main())


def test_case_m1_an_image_is_reused_only_where_every_pixel_is_the_same(loader: MediaLoader) -> None:
    patched = quarters(56)
    patched.putpixel((55, 55), (254, 255, 255))
    files = [plain(colour) for colour in (RED, GREEN, BLUE, YELLOW)]
    alike = [encoded(quarters(56)), encoded(patched)]

    async def main() -> None:
        async with seeing(loader) as server:

            async def cached(file: bytes) -> int:
                body = {"messages": user(image(file), text("Which colour is it?"))}
                response = await server.client.post(
                    "/v1/chat/completions", json={"model": MODEL, "max_tokens": 4, **body}
                )
                found: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                return found

            for file in (*files, *alike):
                assert await cached(file) <= BEFORE
            for _ in range(2):
                for file in (*files, *alike):
                    assert await cached(file) >= BEFORE + 2

    asyncio.run(main())


TRUNCATED = encoded(quarters(200), "JPEG")[:700]
WRONG: Sequence[tuple[str, str]] = (
    (f"data:image/jpeg;base64,{base64_of(TRUNCATED)}", "is damaged"),
    (f"data:image/png;base64,{base64_of(bytes(range(256)))}", "is no picture"),
    ("data:image/png;base64,%%%not base64%%%", "is no base64"),
    ("data:image/png;base64,", "is empty"),
    ("https://example.org/a.png", "--allow-media-url"),
    ("http://127.0.0.1/a.png", "--allow-media-url"),
    ("file:///etc/passwd", "--media-root"),
    ("a.png", "is no address"),
)


@pytest.mark.parametrize(("url", "said"), WRONG)
def test_case_m6_what_is_no_image_is_a_400_that_names_the_part_and_text_goes_on(
    loader: MediaLoader, url: str, said: str
) -> None:
    wrong = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": MODEL, "max_tokens": 2, "messages": user(text("a"), image(plain()), wrong)}

    async def main() -> None:
        async with seeing(loader) as server:
            response = await server.client.post("/v1/chat/completions", json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "messages[0].content[2].image_url")
            assert said in error["message"]
            assert (await server.chat()).status_code == 200
            await server.assert_idle()

    asyncio.run(main())


def test_case_m6_a_model_without_a_projector_refuses_images_by_name_and_reads_none(loader: MediaLoader) -> None:
    file = plain()
    at = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    calls: Sequence[tuple[str, Mapping[str, Any], str]] = (
        ("/v1/chat/completions", {"messages": user(image(file))}, "messages[0].content[0].image_url"),
        (
            "/v1/messages",
            {"messages": user(text("a"), block(file)), "max_tokens": 2},
            "messages[0].content[1].source.data",
        ),
        ("/v1/messages", {"messages": user(at), "max_tokens": 2}, "messages[0].content[0].source.url"),
        (
            "/v1/responses",
            {"input": user({"type": "input_image", "image_url": "https://example.org/a.png"})},
            "input[0].content[0].image_url",
        ),
        ("/tokenize", {"messages": user(image(file))}, "messages[0].content[0].image_url"),
    )

    async def main() -> None:
        async with served(media=loader) as server:
            for path, body, field in calls:
                response = await server.client.post(path, json={"model": MODEL, **body})
                message = response.json()["error"]["message"]
                assert response.status_code == 400, path
                assert f"{field}: is an image, and this model reads text alone" in message
            assert (await server.chat()).status_code == 200

    asyncio.run(main())


def test_props_say_that_the_model_looks_at_images(loader: MediaLoader) -> None:
    async def main() -> None:
        async with seeing(loader) as server:
            props = (await server.client.get("/props")).json()
            assert props["modalities"] == {"vision": True, "audio": False}

    asyncio.run(main())


def test_what_the_projector_refuses_is_named(loader: MediaLoader) -> None:
    async def main() -> None:
        parts = replace(served_parts(), media=FakeMediaReader(most=3))
        async with served(parts, media=loader) as server:
            body = {"model": MODEL, "messages": user(image(plain()), image(plain(size=(56, 56))))}
            error = (await server.client.post("/v1/chat/completions", json=body)).json()["error"]
            assert error["param"] == "messages[0].content[1].image_url"
            assert "has 4 embeddings, at most 3 are read" in error["message"]

    asyncio.run(main())


def test_images_that_do_not_fit_the_context_are_refused(loader: MediaLoader) -> None:
    async def main() -> None:
        parts = replace(served_parts(n_ctx=64), media=FakeMediaReader())
        async with served(parts, media=loader) as server:
            body = {"model": MODEL, "messages": user(image(plain(size=(280, 280))))}
            error = (await server.client.post("/v1/chat/completions", json=body)).json()["error"]
            assert error["code"] == "context_length_exceeded"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("part", "role", "said"),
    [
        ({"type": "image_url"}, "user", "content[0].image_url: is required for the type image_url"),
        ({"type": "text", "text": "a", **image(b"")}, "user", None),
        ({"type": "text", "text": "a", "image_url": {"url": "data:"}}, "user", "is for parts of type image_url"),
        ({"type": "image_url", "image_url": "data:"}, "user", "content[0].image_url"),
        ({"type": "image_url", "image_url": {"url": "data:"}}, "system", "user or of tools, not of 'system'"),
        ({"type": "image_url", "image_url": {"url": "data:"}}, "assistant", "user or of tools, not of 'assistant'"),
        ({"type": "file", "file": {"file_id": "f"}}, "user", "must be text, image_url or input_audio"),
    ],
)
def test_parts_that_make_no_sense_are_refused_by_name(
    loader: MediaLoader, part: dict[str, Any], role: str, said: str | None
) -> None:
    messages = [{"role": role, "content": [part]}, {"role": "user", "content": "Hm"}]

    async def main() -> None:
        async with seeing(loader) as server:
            response = await server.client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
            assert response.status_code == 400
            assert (said or "is empty") in response.json()["error"]["message"]
            assert "messages[0].content[0]" in response.json()["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("job", "messages", "said"),
    [
        (respond, user({"type": "input_image"}), "input[0].content[0].image_url: is required"),
        (
            respond,
            [{"role": "system", "content": [{"type": "input_image", "image_url": "data:"}]}, *user()],
            "input[0].content[0].image_url: belongs to messages of the user",
        ),
        (
            message,
            [*user(text("a")), {"role": "assistant", "content": [block(b"")]}, *user(text("b"))],
            "messages[1].content[0]: image blocks belong to messages of the user",
        ),
    ],
)
def test_images_belong_to_users_and_tools_in_the_other_apis_too(job: Any, messages: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        job(messages)
    assert said in str(error.value)


def test_case_e4_files_made_to_hurt_are_refused_while_a_text_stream_goes_on(loader: MediaLoader) -> None:
    bombs = [
        image(huge_png(14_000, 14_000)),
        image(huge_png(40_000, 40_000)),
        image(plain(size=(1, 50_000))),
        image(plain(size=(50_000, 1))),
    ]
    process = psutil.Process()

    async def main() -> None:
        settings = ServerSettings()
        async with seeing(loader, settings=settings) as server:

            async def post(content: bytes) -> httpx.Response:
                response: httpx.Response = await server.client.post("/v1/chat/completions", content=content)
                return response

            stream = asyncio.create_task(server.chat(max_tokens=200, ignore_eos=True, stream=True))
            bodies = [json.dumps({"model": MODEL, "messages": user(bomb)}).encode() for bomb in bombs]
            crowd = json.dumps({"model": MODEL, "messages": user(*[image(plain())] * 200)}).encode()
            before = process.memory_info().rss
            refused = [await post(body) for body in (*bodies, crowd)]
            assert [response.status_code for response in refused] == [400] * 5
            assert "is one of 200 images" in refused[-1].json()["error"]["message"]
            large = b'{"model": "fake", "messages": [{"role": "user", "content": "' + b"A" * 100 * 2**20
            assert (await post(large)).status_code == 413
            assert process.memory_info().rss - before < 200 * 2**20 + len(large)
            ended = await stream
            assert len(streamed_content(events_of(ended.text))) == 200
            assert ended.text.endswith("data: [DONE]\n\n")

    asyncio.run(main())


def test_a_client_that_leaves_while_its_image_is_read_leaves_nothing_behind() -> None:
    class Held(MediaLoader):
        async def load(self, sources: Any) -> Any:
            del sources
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    held = Held()

    async def main() -> None:
        async with seeing(held) as server:
            body = {"model": MODEL, "messages": user(image(plain()))}
            task = asyncio.create_task(server.client.post("/v1/chat/completions", json=body))
            await started.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert server.backend.open_answers == 0

    try:
        asyncio.run(main())
    finally:
        held.close()


def test_a_server_that_was_made_without_media_says_so() -> None:
    async def main() -> None:
        async with served(replace(served_parts(), media=FakeMediaReader())) as server:
            body = {"model": MODEL, "messages": user(image(plain()))}
            response = await server.client.post("/v1/chat/completions", json=body)
            assert "made without media" in response.json()["error"]["message"]

    asyncio.run(main())


def test_counting_names_the_image_as_answering_does() -> None:
    job = counted_job(
        MessagesRequest.model_validate({"model": MODEL, "messages": user(block(b"")), "max_tokens": 1}), ""
    )
    assert job.messages[0]["content"][0]["image"].field == "messages[0].content[0].source.data"


def test_a_server_reads_files_and_fetches_where_its_options_say(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(plain(RED))
    options = ServeOptions(media_root=tmp_path, allow_media_url=["images.example.org"], max_image_pixels=56 * 28)
    loader = media_loader(options.settings())

    async def main() -> None:
        async with seeing(loader) as server:

            async def error(url: str) -> str:
                part = {"type": "image_url", "image_url": {"url": url}}
                response = await server.client.post(
                    "/v1/chat/completions", json={"model": MODEL, "messages": user(part), "max_tokens": 1}
                )
                return "" if response.status_code == 200 else str(response.json()["error"]["message"])

            assert await error("file:a.png") == ""
            assert "is no file under" in await error("file:../a.png")
            assert "is at example.org, which this server does not fetch from" in await error(
                "https://example.org/a.png"
            )
            (tmp_path / "large.png").write_bytes(plain(RED, (57, 28)))
            assert "at most 1568 are decoded" in await error("file:large.png")

    try:
        asyncio.run(main())
    finally:
        loader.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allow_media_url": ["https://example.org"]}, "allow_media_url: is a host"),
        ({"media_root": Path("/nowhere/at/all")}, "media_root: is no folder"),
        ({"max_image_pixels": 0}, "max_image_pixels: must lie between"),
    ],
)
def test_options_that_make_no_sense_are_told_before_a_model_is_loaded(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        ServeOptions(**options).settings()


def test_limits_of_a_server_hold_for_its_requests() -> None:
    tight = MediaLoader(MediaLimits(max_items=1))

    async def main() -> None:
        async with seeing(tight) as server:
            body = {"model": MODEL, "messages": user(image(plain(RED)), image(plain(BLUE)))}
            error = (await server.client.post("/v1/chat/completions", json=body)).json()["error"]
            assert error["param"] == "messages[0].content[1].image_url"

    try:
        asyncio.run(main())
    finally:
        tight.close()
