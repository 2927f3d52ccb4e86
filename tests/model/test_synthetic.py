"""Synthetic acceptance on the real library: rows are evaluated as ever, and every output says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun import SamplingParams
from tests.model.serving import answer, serving, some_tokens, streamed, usage_of

pytestmark = pytest.mark.model


@pytest.mark.parametrize("with_draft", ["dummy", "a useless draft model"])
@pytest.mark.parametrize(("probability", "per_draft"), [(0.0, 0.0), (1.0, 4.0)])
def test_drafts_come_true_as_often_as_asked_and_cost_their_rows(
    probability: float, per_draft: float, with_draft: str, tiny_dense_path: Path, tiny_unrelated_path: Path
) -> None:
    options: dict[str, Any] = {} if with_draft == "dummy" else {"draft": str(tiny_unrelated_path)}
    params = SamplingParams(max_tokens=51, ignore_eos=True, seed=1)
    with serving(tiny_dense_path, speculation=4, synthetic_acceptance=probability, **options) as engine:
        usage = usage_of(found := answer(engine, some_tokens(30, seed=1), params))
        assert all(piece.is_synthetic for piece in streamed(engine, some_tokens(30, seed=2), params))
    assert found.is_synthetic
    assert usage.is_synthetic
    assert usage.mean_accepted_length == pytest.approx(per_draft, abs=0.15)
    assert usage.drafted_tokens >= 4 * (usage.draft_steps - 4)
    with serving(tiny_dense_path) as plain:
        honest = answer(plain, some_tokens(30, seed=1), params)
    assert not honest.is_synthetic
    if probability:  # what a useless draft proposes and nobody accepts changes nothing
        assert found.token_ids != honest.token_ids
