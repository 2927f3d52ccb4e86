"""Past outputs and plug-ins as drafters of a real model: faster, and never another answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forerun import Engine, InvalidConfigError, SamplingParams
from forerun.core.step import DraftRequest, Proposal
from tests.model.serving import some_tokens, usage_of

pytestmark = pytest.mark.model

PARAMS = SamplingParams(max_tokens=60, ignore_eos=True)


class Guessing:
    """Proposes whatever followed this token the last time it was seen, in any request."""

    name = "guessing"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal((int(request.tokens[-1]),) * request.limit, grade=3) for request in requests]


def test_an_answer_given_before_is_copied_for_its_tenant_alone(tiny_dense_path: Path) -> None:
    prompt = some_tokens(40, seed=1)
    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "reuse_prefixes": False}
    with Engine.load(tiny_dense_path, speculation="off", **options) as engine:
        (plain,) = engine.generate(prompt, PARAMS)
    with Engine.load(tiny_dense_path, speculation=8, **options) as engine:
        outputs = [next(engine.generate(prompt, PARAMS, tenant=tenant)) for tenant in ("a", "a", "b")]
    assert {output.token_ids for output in outputs} == {plain.token_ids}
    first, again, other = [usage_of(output) for output in outputs]
    assert again.drafters["suffix"][1] >= 45
    assert again.steps <= first.steps / 3
    assert (other.drafters, other.steps) == (first.drafters, first.steps)


@pytest.mark.parametrize("given", [Guessing(), Guessing, lambda _context: Guessing()])
def test_a_plug_in_drafts_and_changes_no_answer(tiny_dense_path: Path, given: object) -> None:
    prompt = some_tokens(40, seed=2)
    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1}
    with Engine.load(tiny_dense_path, speculation="off", **options) as engine:
        (plain,) = engine.generate(prompt, PARAMS)
    with Engine.load(tiny_dense_path, speculation=4, drafter=given, **options) as engine:
        (output,) = engine.generate(prompt, PARAMS)
    assert output.token_ids == plain.token_ids
    assert usage_of(output).drafters["guessing"][0] > 0


def test_a_plug_in_that_is_not_there_is_named_before_a_model_is_looked_for() -> None:
    with pytest.raises(InvalidConfigError, match="drafter: module 'no_such_module' could not be imported"):
        Engine.load("no such model", drafter="no_such_module:make")
