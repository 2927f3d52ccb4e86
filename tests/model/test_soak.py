"""Short soaks of generated models: steps and native calls fail, and nobody but culprits is lost."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forerun.testing.soak import Soak
from forerun.testing.soak.real import real_subject
from tests.conftest import MakeTinyModel
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

RECIPES: dict[str, dict[str, Any]] = {
    "dense": {},
    "sliding window": {"kind": "gemma3", "layers": 6},
    "hybrid": {"kind": "lfm2", "layers": 4},
}
OFTEN = 0.04
"""Of the steps, or native calls, are struck."""


@pytest.mark.parametrize(
    ("kind", "breaks_calls"),
    [
        ("dense", False),
        ("hybrid", True),
        *[
            pytest.param(*slow, marks=pytest.mark.slow)
            for slow in (("dense", True), ("sliding window", False), ("sliding window", True), ("hybrid", False))
        ],
    ],
)
def test_nobody_but_culprits_is_lost_on_llama_cpp_whatever_fails(
    kind: str,
    breaks_calls: bool,  # noqa: FBT001 (pytest passes it by name)
    tiny_model: MakeTinyModel,
    tiny_medium_draft_path: Path,
) -> None:
    path = tiny_model(TinyModel(**RECIPES[kind]))
    draft = str(tiny_medium_draft_path) if kind == "dense" else None
    subject = real_subject(str(path), 1, OFTEN, draft=draft, breaks_calls=breaks_calls)
    with closing(subject):
        summary = Soak(subject, seed=1).run(lambda steps: steps < 80)
    assert summary.lost == ()
    assert sum(summary.faults.values()) > 0
    assert summary.finished["length"] > 0
