"""Draft models behind pictures: they see the text alone, at positions of their own, and change no answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeTinyModel
from tests.model.pictures import Seeing, noise, seeing
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

QWEN = TinyModel(kind="qwen2vl")
QUESTION = " What do you see in this picture, and which colour has it?"


@pytest.fixture(scope="module")
def model_path(tiny_model: MakeTinyModel) -> Path:
    return tiny_model(QWEN)


@pytest.fixture(scope="module")
def plain(model_path: Path) -> Iterator[Seeing]:
    with seeing(model_path) as one:
        yield one


@pytest.fixture(scope="module", params=["its own kind", "text alone"])
def drafting(model_path: Path, tiny_model: MakeTinyModel, request: pytest.FixtureRequest) -> Iterator[Seeing]:
    """Drafts four tokens a step with the same weights, or with another architecture's."""
    draft = model_path if request.param == "its own kind" else tiny_model(TinyModel())
    with seeing(model_path, draft=str(draft), speculation=4, cache_ram=64 * 2**20) as one:
        yield one


def test_a_draft_model_drafts_behind_a_picture_and_the_answer_is_the_same(drafting: Seeing, plain: Seeing) -> None:
    said: list[Any] = ["See: ", noise(21, 196, 140), QUESTION]
    drafted = drafting.ask(*said, tokens=60)
    assert tuple(drafted.token_ids) == tuple(plain.ask(*said, tokens=60).token_ids)
    assert drafted.usage is not None
    assert drafted.usage.drafters["draft"][0] > 20


def test_later_turns_go_on_with_the_draft_s_memory(drafting: Seeing, plain: Seeing) -> None:
    said: list[Any] = ["Turns: ", noise(22), QUESTION]
    for turn in range(3):
        drafted, expected = drafting.ask(*said, tokens=16), plain.ask(*said, tokens=16)
        assert tuple(drafted.token_ids) == tuple(expected.token_ids)
        assert drafted.usage is not None
        assert turn == 0 or drafted.usage.cached_tokens > 20
        said += [drafted.text, " And then? ", noise(30 + turn, 84, 56)]


def test_a_draft_s_memory_goes_to_host_memory_and_back_without_the_picture(model_path: Path, plain: Seeing) -> None:
    said: list[Any] = ["Away: ", noise(23, 280, 196), QUESTION]
    expected = plain.ask(*said, tokens=40)
    options: dict[str, Any] = {"draft": str(model_path), "speculation": 4, "n_ctx": 512, "cache_ram": 64 * 2**20}
    with seeing(model_path, **options) as one:
        assert tuple(one.ask(*said, tokens=40).token_ids) == tuple(expected.token_ids)
        for number in range(4):
            one.ask(f"{number} " + "other words " * 120)
        again = one.ask(*said, tokens=40)
        assert tuple(again.token_ids) == tuple(expected.token_ids)
        assert again.usage is not None
        assert again.usage.cached_host_tokens > 50
        assert again.usage.drafted_tokens > 10
