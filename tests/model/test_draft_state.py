"""Cases S3 and S12: a draft's own state never spoils an answer, nor drafting itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from forerun import Engine, FinishReason, Output, SamplingParams
from tests.conftest import MakeTinyModel
from tests.model.serving import Ids, answer, answers, assert_length, serving, some_tokens, usage_of
from tests.support.greedy_eq import GreedyOracle
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model


def acceptance(outputs: Sequence[Output]) -> float:
    """Share of the draft model's tokens that were accepted."""
    split = [usage_of(output).drafters.get("draft", (0, 0)) for output in outputs]
    drafted, accepted = (sum(counts) for counts in zip(*split, strict=True))
    assert drafted > 100
    return float(accepted / drafted)


def asked(engine: Engine, prompts: Sequence[Ids], concurrency: int) -> list[Output]:
    params = SamplingParams(max_tokens=40)
    parts = [prompts[start : start + concurrency] for start in range(0, len(prompts), concurrency)]
    return [output for part in parts for output in answers(engine, part, params)]


def test_as_much_is_accepted_in_company_and_after_unrelated_requests(
    tiny_dense_path: Path, tiny_medium_draft_path: Path
) -> None:
    prompts = [some_tokens(60 + index, seed=index) for index in range(8)]
    options = {"draft": str(tiny_medium_draft_path), "speculation": 4, "suffix_tokens": 0, "reuse_prefixes": False}
    with serving(tiny_dense_path, max_num_seqs=8, **options) as engine:
        alone = acceptance(asked(engine, prompts, 1))
        together = acceptance(asked(engine, prompts, 8))
        answers(engine, [some_tokens(900, seed=50 + index) for index in range(2)], SamplingParams(max_tokens=60))
        afterwards = acceptance(asked(engine, prompts, 8))
    assert 0.2 < alone < 0.95, "neither hopeless nor certain, so that damage would show"
    assert together == pytest.approx(alone, rel=0.1)
    assert afterwards == pytest.approx(alone, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("speculation", [1, 5, 16])
def test_texts_outgrow_a_small_draft_context_and_run_to_the_end_of_the_targets(
    speculation: int, tiny_model: MakeTinyModel, tiny_dense_path: Path, dense_oracle: GreedyOracle
) -> None:
    draft = str(tiny_model(TinyModel(noise=0.02)))
    with serving(tiny_dense_path, n_ctx=4096, draft=draft, draft_n_ctx=128, speculation=speculation) as engine:
        for seed, count in ((1, 1000), (2, 50)):
            prompt = some_tokens(30, seed=seed)
            output = answer(engine, prompt, SamplingParams(max_tokens=count))
            assert_length(output, prompt, count)
            dense_oracle.check(prompt, output.token_ids)
        prompt = some_tokens(3000, seed=3)
        output = answer(engine, prompt, SamplingParams())
        assert output.finish_reason is FinishReason.LENGTH
        assert len(output.token_ids) == 4097 - 3000
