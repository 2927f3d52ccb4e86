"""Real Qwen2 weights under M-RoPE behind a picture, with a draft that sees the text alone.

FORERUN_TARGET and FORERUN_DRAFT name two Qwen2 files; their weights are real, what they see is noise.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from forerun.engine.output import Output
from tests.model.pictures import Seeing, noise, seeing
from tests.support.relabelled import relabelled, width_of
from tests.support.tiny_models import MODELS_FOLDER
from tests.support.tiny_projector import TinyProjector, build_projector

pytestmark = [pytest.mark.model, pytest.mark.slow]

CODE = "Write a Python function that returns the n-th Fibonacci number, with a docstring and three examples."
TOKENS = 120


def share(output: Output) -> float:
    assert output.usage is not None
    drafted, accepted = output.usage.drafters["draft"]
    return accepted / drafted


def test_a_text_draft_behind_a_picture_is_accepted_almost_as_often_as_without() -> None:
    """The done line of issue 8: at least 0.8 of its acceptance on text alone."""
    target, draft = (os.environ.get(name) for name in ("FORERUN_TARGET", "FORERUN_DRAFT"))
    if not target or not draft:
        pytest.skip("FORERUN_TARGET and FORERUN_DRAFT name no Qwen2 pair")
    model = relabelled(Path(target), MODELS_FOLDER)
    projector = build_projector(TinyProjector(width=width_of(Path(target)), scale=0.02))
    with_picture: list[Any] = ["<|im_start|>user\n", noise(1, 448, 448), f" {CODE}<|im_end|>\n<|im_start|>assistant\n"]
    text = [part for part in with_picture if isinstance(part, str)]

    def ask(one: Seeing, parts: list[Any]) -> Output:
        return one.ask(*parts, tokens=TOKENS)

    with seeing(model, projector, n_threads=2) as one:
        plain = ask(one, with_picture)
    with seeing(model, projector, n_threads=2, draft=draft, speculation=4) as one:
        drafted, alone = ask(one, with_picture), ask(one, text)
    assert tuple(drafted.token_ids) == tuple(plain.token_ids)
    assert share(drafted) >= 0.8 * share(alone)
