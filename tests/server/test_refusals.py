"""What the engine would refuse is refused before a stream begins: as JSON with a status, never as an event."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from forerun.compose_models import limits_of
from forerun.core.engine_limits import EngineLimits
from forerun.engine_config import EngineConfig
from tests.server.support import scripted_parts, served

JSON = {"type": "json_object"}
SIZE = 258


@pytest.mark.parametrize(
    ("limits", "fields", "named"),
    [
        (EngineLimits(vocabulary_size=SIZE, fixed_drafts=4), {"speculation": "auto"}, "speculation"),
        (EngineLimits(vocabulary_size=SIZE), {"adapters": {"unknown": 1.0}}, "adapters"),
        (EngineLimits(vocabulary_size=SIZE), {"logit_bias": {"258": 1}}, "logit_bias"),
        (EngineLimits(vocabulary_size=SIZE), {"stop_token_ids": [258]}, "stop_token_ids"),
        (EngineLimits(vocabulary_size=SIZE), {"response_format": JSON}, "response_format"),  # no grammars here
        (EngineLimits(vocabulary_size=SIZE), {"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
    ],
)
def test_what_the_engine_would_refuse_is_a_400_before_a_stream_begins(
    limits: EngineLimits, fields: dict[str, Any], named: str
) -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "yes"), limits=limits) as server:
            response = await server.chat(stream=True, **fields)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == named
            assert (await server.chat()).status_code == 200

    asyncio.run(main())


class AnyGrammar:
    async def check_soon(self, grammar: object, field: str = "grammar") -> None:
        """Nothing is wrong."""


def test_no_grammar_is_enforced_where_drafts_are_accepted_at_random() -> None:
    async def main() -> None:
        limits = EngineLimits(vocabulary_size=SIZE, accepts_at_random=True)
        async with served(scripted_parts(lambda _: "yes"), limits=limits, grammars=AnyGrammar()) as server:
            response = await server.chat(stream=True, response_format=JSON)
            assert response.status_code == 400
            assert "at random" in response.json()["error"]["message"]

    asyncio.run(main())


def test_a_template_that_writes_nothing_makes_no_prompt() -> None:
    async def main() -> None:
        async with served(scripted_parts(lambda _: "yes", template="{{ messages[9] }}")) as server:
            response = await server.chat(stream=True)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "messages"

    asyncio.run(main())


def test_the_limits_of_an_engine_are_those_of_its_configuration() -> None:
    plain = EngineLimits(vocabulary_size=SIZE, adapters=frozenset())
    assert limits_of(EngineConfig(model="m", draft="d"), SIZE) == plain
    assert limits_of(EngineConfig(model="m", draft="d", speculation=4), SIZE) == replace(plain, fixed_drafts=4)
    assert limits_of(EngineConfig(model="m", speculation=0), SIZE) == plain
    adapted = EngineConfig(model="m", adapters={"a": "a.gguf"}, synthetic_acceptance=0.5)
    assert limits_of(adapted, SIZE) == replace(plain, adapters=frozenset({"a"}), accepts_at_random=True)
