"""/cache: what would hit, computing ahead, keeping, why not more, forgetting; and the marks of Anthropic's API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.prompt import PromptLayout
from forerun.core.scheduler import Scheduler
from forerun.engine.async_engine import AsyncioEngine
from forerun.engine.parts import EngineParts
from forerun.engine.tokenizer import Tokenizer
from forerun.server.settings import ServerSettings
from forerun.testing import FAKE_SIZES, FakeStore
from forerun.testing.served import ByteVocabulary, PacedRunner, served_parts
from tests.server.support import MODEL, ServerUnderTest, seats_of, served

LONG = "Once upon a time there was a river that ran uphill on Sundays. " * 4
KEYS = ("sk-the-first-key", "sk-the-second-key")
Check = Callable[[ServerUnderTest], Awaitable[None]]


def on_a_server(check: Check, parts: EngineParts | None = None, settings: ServerSettings | None = None) -> None:
    async def main() -> None:
        async with served(parts, settings) as server:
            await check(server)

    asyncio.run(main())


async def called(server: ServerUnderTest, path: str, *, key: str = KEYS[0], **fields: Any) -> dict[str, Any]:
    response = await server.client.post(f"/cache/{path}", json=fields, headers={"authorization": f"Bearer {key}"})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def refused(server: ServerUnderTest, path: str, **fields: Any) -> dict[str, Any]:
    response = await server.client.post(f"/cache/{path}", json=fields)
    assert response.status_code in (400, 404), response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def parts_with_a_host_tier() -> EngineParts:
    """An engine whose idle prefixes are copied to host memory."""
    parts, cache_ram = served_parts(), 10**9
    assert isinstance(parts.runner, PacedRunner)
    parts.runner.store = FakeStore(cache_ram)
    config = SchedulerConfig(
        n_ctx=parts.n_ctx, n_seq_max=16, max_num_seqs=4, cache_ram=cache_ram, segment_sizes=FAKE_SIZES
    )
    return replace(parts, scheduler=Scheduler(config, parts.vocabulary))


class RecordedCache:
    """The engine's cache, and what of it was pinned: text, seconds, tenant, and how many tokens were."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.pins: list[tuple[str, float, str, int]] = []

    async def pin(self, layout: PromptLayout, seconds: float, *, tenant: str, adapters: Any) -> int:
        pinned: int = await self._cache.pin(layout, seconds, tenant=tenant, adapters=adapters)
        text = Tokenizer(ByteVocabulary()).shown(layout.text_tokens.tolist())
        self.pins.append((text, seconds, tenant, pinned))
        return pinned


def test_lookup_says_what_would_be_reused_and_changes_nothing() -> None:
    async def check(server: ServerUnderTest) -> None:
        nothing = await called(server, "lookup", prompt=LONG)
        assert (nothing["prompt_tokens"], nothing["cached_tokens"]) == (len(LONG), 0)
        assert nothing == await called(server, "lookup", prompt=LONG)
        usage = (await server.complete(LONG)).json()["usage"]
        found = await called(server, "lookup", prompt=LONG)
        assert found["cached_tokens"] == found["resident_tokens"] == usage["prompt_tokens"] - 1
        assert (found["host_tokens"], found["disk_tokens"]) == (0, 0)
        more = await called(server, "lookup", prompt=LONG[:100] + "other")
        assert 100 <= more["cached_tokens"] < 105

    on_a_server(check)


def test_what_is_warmed_is_found_by_a_prompt_that_begins_alike() -> None:
    async def check(server: ServerUnderTest) -> None:
        first = await called(server, "warm", prompt=LONG)
        assert (first["prompt_tokens"], first["cached_tokens"]) == (len(LONG), 0)
        assert first["prefill_ms"] > 0
        assert (await called(server, "warm", prompt=LONG))["cached_tokens"] == len(LONG) - 1
        usage = (await server.complete(LONG + "And then?")).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == len(LONG)
        await server.assert_idle()

    on_a_server(check, served_parts(seconds_per_step=0.001))


def test_a_conversation_a_text_and_its_tokens_are_one_prompt() -> None:
    async def check(server: ServerUnderTest) -> None:
        messages = [{"role": "user", "content": LONG}]
        text = (await server.client.post("/apply-template", json={"messages": messages})).json()["prompt"]
        tokens = (await server.client.post("/tokenize", json={"prompt": text})).json()["tokens"]
        await called(server, "warm", messages=messages)
        for form in ({"messages": messages}, {"prompt": text}, {"prompt": tokens}):
            assert (await called(server, "lookup", **form))["cached_tokens"] == len(tokens) - 1
        chat = await server.chat(LONG)
        assert chat.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == len(tokens) - 1

    on_a_server(check)


def test_each_key_and_salt_has_a_cache_of_its_own() -> None:
    async def check(server: ServerUnderTest) -> None:
        one, other = KEYS
        await called(server, "warm", prompt=LONG)
        await called(server, "warm", prompt=LONG, cache_salt="s")
        assert (await called(server, "lookup", prompt=LONG, key=other))["cached_tokens"] == 0
        assert (await called(server, "clear", key=other))["dropped"] == 0
        assert (await called(server, "clear", key=one))["dropped"] > 0
        assert (await called(server, "lookup", prompt=LONG))["cached_tokens"] == 0
        assert (await called(server, "lookup", prompt=LONG, cache_salt="s"))["cached_tokens"] == len(LONG) - 1
        assert (await called(server, "clear", cache_salt="s"))["dropped"] > 0
        assert (await called(server, "lookup", prompt=LONG, cache_salt="s"))["cached_tokens"] == 0

    on_a_server(check, settings=ServerSettings(api_keys=frozenset(KEYS)))


def test_explain_says_where_a_prompt_went_on_otherwise() -> None:
    async def check(server: ServerUnderTest) -> None:
        first = (await server.complete(f"{LONG}It was blue.")).json()
        assert (await called(server, "explain", id=first["id"]))["why"] == "nothing like it was seen before"
        second = (await server.complete(f"{LONG}It was green.")).json()
        told = await called(server, "explain", id=second["id"])
        assert told["why"] == "the prompt goes on otherwise than anything seen before"
        assert told["known_tokens"] == told["cached_tokens"] == len(f"{LONG}It was ")
        assert told["prompt_text"].endswith("It was green.")
        assert told["other_text"].startswith("blue.")
        again = (await server.complete(f"{LONG}It was green.")).json()
        assert (await called(server, "explain", id=again["id"]))["why"] == "all but the last token was reused"

    on_a_server(check)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4, "n": 2}),
        ("/v1/responses", {"input": LONG, "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4}),
    ],
)
def test_answers_of_any_api_can_be_explained(path: str, body: dict[str, Any]) -> None:
    async def check(server: ServerUnderTest) -> None:
        answer = (await server.client.post(path, json={"model": MODEL, **body})).json()
        assert (await called(server, "explain", id=answer["id"]))["prompt_tokens"] > len(LONG)
        error = await refused(server, "explain", id=answer["id"], choice=2)
        assert error["code"] == "not_found"

    on_a_server(check)


def test_pinning_keeps_what_is_stored_of_a_prompt_for_a_while_and_for_its_owner_alone() -> None:
    async def check(server: ServerUnderTest) -> None:
        one, other = KEYS
        assert (await called(server, "pin", prompt=LONG, seconds=60))["pinned_tokens"] == 0  # nothing is there
        await called(server, "warm", prompt=LONG)
        while (pinned := await called(server, "pin", prompt=LONG, seconds=60))["pinned_tokens"] == 0:
            await asyncio.sleep(0.002)  # it is copied to host memory when nothing is more urgent
        assert pinned["pinned_tokens"] == len(LONG)
        assert (await called(server, "pin", prompt=LONG, seconds=60, key=other))["pinned_tokens"] == 0
        assert (await called(server, "pin", prompt=LONG[:99], seconds=60, key=one))["pinned_tokens"] >= 99

    on_a_server(check, parts_with_a_host_tier(), ServerSettings(api_keys=frozenset(KEYS)))


def test_marks_of_anthropics_requests_pin_what_comes_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is in the system prompt: neither what the user says nor what the template writes behind is pinned."""
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]

    async def check(server: ServerUnderTest) -> None:
        recorded = RecordedCache(server.engine.cache)
        monkeypatch.setattr(AsyncioEngine, "cache", recorded)
        body = {"model": MODEL, "max_tokens": 4, "system": system, "messages": [{"role": "user", "content": "hello"}]}
        assert (await server.client.post("/v1/messages", json=body)).status_code == 200
        while not recorded.pins or recorded.pins[-1][3] == 0:  # tried until it is stored
            await asyncio.sleep(0.002)
        text, seconds, tenant, tokens = recorded.pins[-1]
        assert text == f"<|im_start|>system\n{LONG}<|im_end|>\n<|im_start|>"
        assert (seconds, tenant) == (3600.0, "")
        assert tokens >= len(LONG) + len("system\n\n") + 2

    on_a_server(check, parts_with_a_host_tier())


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        ("lookup", {}, None, "give either prompt or messages"),
        ("lookup", {"prompt": [258]}, "prompt", "token id 258 is outside the vocabulary"),
        ("lookup", {"prompt": [-1]}, "prompt", ""),
        ("lookup", {"prompt": "a", "adapters": "x"}, "adapters", "'x' is not known"),
        ("lookup", {"prompt": "a", "cache_salt": "\0"}, "cache_salt", "NUL"),
        ("warm", {"prompt": ""}, "prompt", "is empty; give at least one token"),
        ("warm", {"prompt": "a" * 70_000}, "prompt", "70000"),
        ("warm", {"prompt": "a", "model": "gpt-5"}, "model", "there is no model"),
        ("pin", {"prompt": "a"}, "seconds", "required"),
        ("pin", {"prompt": "a", "seconds": 0}, "seconds", "greater than 0"),
        ("pin", {"prompt": "a", "seconds": 1e9}, "seconds", "must lie between 0 and 2.592e+06"),
        ("explain", {"id": "chatcmpl-nobody"}, "id", "no such answer is remembered"),
        ("explain", {"id": ""}, "id", "no such answer is remembered"),
        ("clear", {"everything": True}, "everything", "is not known"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(path: str, fields: Any, param: str | None, said: str) -> None:
    async def check(server: ServerUnderTest) -> None:
        error = await refused(server, path, **fields)
        assert error["param"] == param
        assert said in error["message"]
        await server.assert_idle()

    on_a_server(check)


def test_a_client_that_leaves_ends_what_it_warmed() -> None:
    async def check(server: ServerUnderTest) -> None:
        body = {"prompt": "x" * 60_000}
        warming = asyncio.create_task(server.client.post("/cache/warm", json=body))
        while (await server.engine.stats()).running == 0:
            await asyncio.sleep(0.002)
        warming.cancel()
        with pytest.raises((asyncio.CancelledError, httpx.HTTPError)):
            await warming
        await server.assert_idle()
        assert seats_of(server.backend).open == 0

    on_a_server(check, served_parts(seconds_per_step=0.02))
