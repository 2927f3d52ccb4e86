"""Prefixes that leave the KV memory and come back, on real models: whatever moves, answers are what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun import Output, SamplingParams
from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.model.conftest import long_probes
from tests.model.serving import answer, answers, serving, some_tokens, usage_of
from tests.support.greedy_eq import GreedyOracle
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

RECIPES: dict[str, dict[str, Any]] = {
    "dense": {},
    "sliding window": {"kind": "gemma3", "layers": 6},
    "hybrid": {"kind": "lfm2", "layers": 4},
    "recurrent": {"kind": "mamba"},
}
TWENTY = SamplingParams(max_tokens=20, ignore_eos=True)
GIB = 2**30


@pytest.fixture(scope="module", params=RECIPES)
def path(request: pytest.FixtureRequest, tiny_model: MakeTinyModel) -> Path:
    return tiny_model(TinyModel(**RECIPES[request.param]))


@pytest.fixture(scope="module")
def oracle(path: Path) -> Iterator[GreedyOracle]:
    model = LlamaModel.load(path)
    oracle = GreedyOracle(model, n_ctx=4096, probes=long_probes())
    yield oracle
    oracle.close()
    model.close()


def computed(output: Output) -> int:
    usage = usage_of(output)
    return usage.prompt_tokens - usage.cached_tokens


def test_eight_at_once_compute_2048_shared_tokens_once(path: Path, oracle: GreedyOracle) -> None:
    shared = some_tokens(2048, seed=1)
    prompts = [shared + some_tokens(5 + index, seed=index + 2) for index in range(8)]
    with serving(path, n_ctx=4096, cache_ram=GIB) as engine:
        outputs = answers(engine, prompts, TWENTY)
    assert sum(map(computed, outputs)) <= 2048 + sum(len(prompt) - 2048 for prompt in prompts) + 512
    for prompt, output in zip(prompts, outputs, strict=True):
        assert oracle.faults(prompt, output.token_ids) == []


def test_every_turn_computes_its_new_tokens_only(path: Path, oracle: GreedyOracle) -> None:
    prompt = some_tokens(400, seed=1)
    with serving(path, n_ctx=2048, cache_ram=GIB) as engine:
        for turn in range(4):
            output = answer(engine, prompt, TWENTY)
            assert oracle.faults(prompt, output.token_ids) == []
            if turn:
                assert computed(output) <= 30 + 1
            prompt = [*prompt, *output.token_ids, *some_tokens(30, seed=turn + 2)]


def test_a_turn_whose_last_answer_lost_its_reasoning_is_computed_from_there(path: Path, oracle: GreedyOracle) -> None:
    """K4: 4,000 tokens, and a client that strips what the model thought."""
    long = SamplingParams(max_tokens=120, ignore_eos=True)
    prompt = some_tokens(3000, seed=1)
    with serving(path, n_ctx=4096, cache_ram=GIB) as engine:
        for turn in range(4):
            output = answer(engine, prompt, long)
            if turn:
                common = len(prompt) - 50
                assert usage_of(output).cached_tokens >= 0.8 * common
                assert computed(output) <= 50 + 1
                assert oracle.faults(prompt, output.token_ids) == []
            prompt = [*prompt, *output.token_ids[-20:], *some_tokens(30, seed=turn + 2)]


def test_twelve_conversations_in_a_pool_for_four_compute_new_tokens_only(path: Path, oracle: GreedyOracle) -> None:
    prompts = [some_tokens(200, seed=index) for index in range(12)]
    with serving(path, n_ctx=1200, n_seq_max=6, max_num_seqs=4, cache_ram=GIB) as engine:
        for turn in range(3):
            for start in range(0, 12, 4):
                outputs = answers(engine, prompts[start : start + 4], TWENTY)
                for index, output in enumerate(outputs, start):
                    assert oracle.faults(prompts[index], output.token_ids) == []
                    if turn:
                        assert computed(output) <= 12 + 1
                    new = some_tokens(12, seed=100 * turn + index)
                    prompts[index] = [*prompts[index], *output.token_ids, *new]


def test_a_restart_serves_yesterday_s_conversations_without_prefill(
    path: Path, oracle: GreedyOracle, tmp_path: Path
) -> None:
    prompts = [some_tokens(600 + 100 * index, seed=index) for index in range(3)]
    options = {"cache_dir": str(tmp_path / "cache"), "cache_ram": GIB}
    with serving(path, n_ctx=3000, **options) as engine:
        first = answers(engine, prompts, TWENTY)
    with serving(path, n_ctx=3000, **options) as engine:
        for prompt, output in zip(prompts, first, strict=True):
            more = [*prompt, *output.token_ids, *some_tokens(9, seed=7)]
            again = answer(engine, more, TWENTY)
            assert usage_of(again).cached_disk_tokens >= len(prompt)
            assert computed(again) <= 9 + 1
            assert oracle.faults(more, again.token_ids) == []


def test_a_draft_accepts_after_coming_back_what_it_did_before(tiny_model: MakeTinyModel) -> None:
    """Target and draft leave together and come back together."""
    target, draft = tiny_model(TinyModel()), tiny_model(TinyModel(noise=0.02))
    fifty = SamplingParams(max_tokens=50, ignore_eos=True)
    prompt = some_tokens(500, seed=1)
    options = {"draft": str(draft), "speculation": 5, "n_ctx": 1100, "max_num_seqs": 2, "n_seq_max": 3}
    with serving(target, cache_ram=GIB, **options) as engine:
        kept = usage_of(answer(engine, prompt, fifty))
        for seed in (2, 3, 4):
            answer(engine, some_tokens(900, seed=seed), TWENTY)
        back = usage_of(answer(engine, [*prompt, *some_tokens(5, seed=9)], fifty))
    with serving(target, cache_ram=0, **options) as engine:
        cold = usage_of(answer(engine, [*prompt, *some_tokens(5, seed=9)], fifty))
    assert back.cached_host_tokens >= 490
    assert kept.accepted_tokens
    assert back.accepted_tokens == pytest.approx(cold.accepted_tokens, rel=0.1)


def test_forks_accept_what_their_source_does(tiny_model: MakeTinyModel) -> None:
    """Eight with the same beginning at once, target and draft forked together, against each of them alone."""
    target, draft = tiny_model(TinyModel()), tiny_model(TinyModel(noise=0.02))
    fifty = SamplingParams(max_tokens=50, ignore_eos=True)
    shared = some_tokens(300, seed=1)
    prompts = [shared + some_tokens(4, seed=2 + index) for index in range(8)]
    options = {"draft": str(draft), "speculation": 5, "n_ctx": 4096}
    with serving(target, cache_ram=GIB, **options) as engine:
        forked = [usage_of(output) for output in answers(engine, prompts, fifty)]
    with serving(target, reuse_prefixes=False, **options) as engine:
        alone = [usage_of(answer(engine, prompt, fifty)) for prompt in prompts]
    assert sum(usage.cached_tokens for usage in forked) >= 7 * 290
    of_forks, of_each = (
        sum(usage.accepted_tokens for usage in usages) / sum(usage.drafted_tokens for usage in usages)
        for usages in (forked, alone)
    )
    assert of_forks == pytest.approx(of_each, rel=0.1)


def test_the_cache_can_be_asked_and_told(tiny_dense_path: Path) -> None:
    system = "You are a careful clerk. " * 20
    with serving(tiny_dense_path, cache_ram=GIB) as engine:
        assert engine.cache.lookup(system).cached_tokens == 0
        warmed = engine.cache.warm(system)
        found = engine.cache.lookup(system)
        assert found.cached_tokens == warmed.prompt_tokens - 1
        assert engine.cache.pin(system, 60) == warmed.prompt_tokens
        (other,) = engine.generate(system.replace("clerk", "cook", 1), TWENTY)
        explanation = engine.cache.explain(other.request_id)
        assert explanation is not None
        assert "clerk" in explanation.other_text
        assert "cook" in explanation.prompt_text
        assert engine.cache.clear() > 0
        assert engine.cache.lookup(system).cached_tokens == 0
