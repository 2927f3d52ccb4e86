"""LoRA adapters on real models: each answer is its adapter's own, whatever others run, and no KV passes between them.

Case K2 of shared/cases/cases.md: KV computed under one adapter was reused for a request that selects another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from forerun import Engine, ModelLoadError, Output, SamplingParams
from forerun.core.adapters import adapter_set
from forerun.native.adapters import AppliedAdapters, LoraAdapter
from forerun.native.context import LlamaContext
from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.model.serving import answer, answers, serving, some_tokens, usage_of
from tests.support.greedy_eq import GreedyOracle, without_ends
from tests.support.tiny_adapters import TinyAdapter, build_adapter
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

Choice = dict[str, float]
A: Choice = {"a": 1.0}
B: Choice = {"b": 1.0}
NONE: Choice = {}
HALF: Choice = {"a": 0.5}
BOTH: Choice = {"a": 1.0, "b": 1.0}
TOKENS = 12


def greedy(adapters: Choice, count: int = TOKENS) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, adapters=adapters)


class AdaptedOracle:
    """The GREEDY-EQ oracle of a model with adapters, its noise measured with one of them."""

    def __init__(self, base: Path, files: dict[str, Path]) -> None:
        self.model = LlamaModel.load(base)
        self.loaded = {name: LoraAdapter.load(self.model, file) for name, file in files.items()}
        probe = np.array(some_tokens(100, seed=100), np.int32)
        self.oracle = GreedyOracle(self.model, n_ctx=512, probes=[probe], prepare=self.prepare)

    def prepare(self, context: LlamaContext) -> None:
        self.applied = AppliedAdapters(self.loaded, [context])
        self.applied.apply((("a", 1.0),))

    def check(self, prompt: list[int], output: Output, choice: Choice) -> None:
        self.applied.apply(adapter_set(choice))
        self.oracle.check(prompt, output.token_ids, without_ends(self.model))

    def close(self) -> None:
        self.oracle.close()
        self.model.close()


@pytest.fixture(scope="module", params=["dense", "window", "hybrid"])
def base(request: pytest.FixtureRequest, tiny_model: MakeTinyModel) -> Path:
    kinds = {"dense": TinyModel(), "window": TinyModel("gemma3", layers=6), "hybrid": TinyModel("lfm2", layers=4)}
    return tiny_model(kinds[request.param])


@pytest.fixture(scope="module")
def files(base: Path) -> dict[str, Path]:
    return {"a": build_adapter(TinyAdapter(seed=1), base), "b": build_adapter(TinyAdapter(seed=2), base)}


@pytest.fixture(scope="module")
def oracle(base: Path, files: dict[str, Path]) -> Iterator[AdaptedOracle]:
    made = AdaptedOracle(base, files)
    yield made
    made.close()


def test_adapters_are_small_and_change_the_answer(base: Path, files: dict[str, Path]) -> None:
    assert all(file.stat().st_size < 2**20 for file in files.values())
    prompt = some_tokens(60, seed=1)
    with serving(base, adapters=files) as engine:
        said = [answer(engine, prompt, greedy(choice)).token_ids for choice in (A, B, NONE)]
    assert len({tuple(tokens) for tokens in said}) == 3


def test_each_change_of_adapters_computes_the_prompt_and_each_repeat_reuses_it(
    base: Path, files: dict[str, Path], oracle: AdaptedOracle
) -> None:
    prompt = some_tokens(150, seed=2)
    choices = [A, B, NONE, HALF, BOTH]
    with serving(base, adapters=files) as engine:
        for choice in choices:
            output = answer(engine, prompt, greedy(choice))
            oracle.check(prompt, output, choice)
            assert usage_of(output).cached_tokens == 0, choice
        for choice in choices:
            output = answer(engine, prompt, greedy(choice))
            oracle.check(prompt, output, choice)
            assert usage_of(output).cached_tokens == len(prompt) - 1, choice


def test_eight_at_once_with_mixed_adapters_answer_as_each_would_alone(
    base: Path, files: dict[str, Path], oracle: AdaptedOracle
) -> None:
    prompts = [some_tokens(100, seed=3) + some_tokens(5, seed=10 + index) for index in range(8)]
    choices = [A, B, NONE, A, HALF, B, NONE, A]
    with serving(base, adapters=files) as engine:
        found = answers(engine, prompts, [greedy(choice) for choice in choices])
        for prompt, output, choice in zip(prompts, found, choices, strict=True):
            oracle.check(prompt, output, choice)
        assert [usage_of(output).cached_tokens >= 100 for output in found] == [
            choice in choices[:index] for index, choice in enumerate(choices)
        ]


def test_drafts_of_a_model_without_adapters_never_change_an_answer(
    base: Path, files: dict[str, Path], oracle: AdaptedOracle
) -> None:
    """The target itself drafts, so it is nearly always right without adapters and often wrong with them."""
    prompts = [some_tokens(80, seed=20 + index) for index in range(3)]
    choices = [A, NONE, B]
    with serving(base, adapters=files, draft=str(base), speculation=4, max_num_seqs=4) as engine:
        found = answers(engine, prompts, [greedy(choice) for choice in choices])
        for prompt, output, choice in zip(prompts, found, choices, strict=True):
            oracle.check(prompt, output, choice)
            assert usage_of(output).drafted_tokens > 0
        assert usage_of(found[1]).accepted_tokens > 0


@pytest.mark.parametrize("kind", ["glm4moe", "qwen35"])
def test_an_mtp_head_drafts_under_the_adapters_of_its_model(tiny_model: MakeTinyModel, kind: Any) -> None:
    base = tiny_model(TinyModel(kind, layers=1 if kind == "glm4moe" else 2))
    files = {"a": build_adapter(TinyAdapter(seed=1, gain=0.2), base)}
    oracle = AdaptedOracle(base, files)
    prompts = [some_tokens(60, seed=30 + index) for index in range(4)]
    choices = [A, NONE, HALF, A]
    try:
        with serving(base, adapters=files, mtp=True, speculation=3, max_num_seqs=4) as engine:
            found = answers(engine, prompts, [greedy(choice, 24) for choice in choices])
        for prompt, output, choice in zip(prompts, found, choices, strict=True):
            oracle.check(prompt, output, choice)
            assert usage_of(output).drafted_tokens > 0
        assert usage_of(found[1]).accepted_tokens > 0
    finally:
        oracle.close()


def test_a_changed_adapter_under_the_same_name_finds_nothing_of_the_one_before_on_disk(
    base: Path, files: dict[str, Path], oracle: AdaptedOracle, tmp_path: Path
) -> None:
    prompt = some_tokens(200, seed=4)
    versions = {"first": files["a"], "changed": files["b"], "changed back": files["a"]}
    for version, file in versions.items():
        with serving(base, adapters={"a": file}, cache_dir=tmp_path / "cache") as engine:
            for choice, is_same in ((A, version == "changed back"), (NONE, version != "first")):
                output = answer(engine, prompt, greedy(choice))
                oracle.check(prompt, output, {"b": 1.0} if choice and file == files["b"] else choice)
                expected = len(prompt) - 1 if is_same else 0
                assert usage_of(output).cached_disk_tokens == usage_of(output).cached_tokens == expected, version


@pytest.mark.slow
def test_a_real_model_with_mixed_adapters_at_once_and_then_again(smollm2_path: Path) -> None:
    files = {
        "a": build_adapter(TinyAdapter(seed=1), smollm2_path),
        "b": build_adapter(TinyAdapter(seed=2), smollm2_path),
    }
    oracle, prompt, choices = AdaptedOracle(smollm2_path, files), some_tokens(60, seed=7), [A, B, NONE, HALF]
    params = [greedy(choice, 8) for choice in choices]
    try:
        with serving(smollm2_path, adapters=files) as engine:
            for cached in (0, len(prompt) - 1):
                found = answers(engine, [prompt] * 4, params)
                for output, choice in zip(found, choices, strict=True):
                    oracle.check(prompt, output, choice)
                    assert usage_of(output).cached_tokens == cached, choice
                assert len({tuple(output.token_ids) for output in found[:3]}) == 3
    finally:
        oracle.close()


def test_the_cache_is_looked_up_and_warmed_by_adapters(tiny_dense_path: Path) -> None:
    files = {"a": build_adapter(TinyAdapter(seed=1), tiny_dense_path)}
    prompt = some_tokens(100, seed=5)
    with serving(tiny_dense_path, adapters=files) as engine:
        engine.cache.warm(prompt, adapters="a")
        assert engine.cache.lookup(prompt, adapters={"a": 1}).cached_tokens == 99
        assert engine.cache.lookup(prompt, adapters={"a": 0.5}).cached_tokens == 0
        assert engine.cache.lookup(prompt).cached_tokens == 0
        assert engine.cache.clear(tenant="") > 0
        assert engine.cache.lookup(prompt, adapters="a").cached_tokens == 0


def test_unused_adapters_change_nothing(tiny_dense_path: Path) -> None:
    files = {"a": build_adapter(TinyAdapter(seed=1), tiny_dense_path)}
    prompt = some_tokens(50, seed=6)
    said: list[tuple[int, ...]] = []
    for adapters in ({}, files):
        with serving(tiny_dense_path, adapters=adapters) as engine:
            said.append(tuple(answer(engine, prompt, greedy(NONE)).token_ids))
    assert said[0] == said[1]


def test_an_adapter_that_changes_while_it_is_loaded_is_refused(tiny_dense_path: Path, tmp_path: Path) -> None:
    """Else what is computed with one content would be stored under the digest of another."""
    path = tmp_path / "adapter.gguf"
    first, second = (build_adapter(TinyAdapter(seed=seed), tiny_dense_path).read_bytes() for seed in (1, 2))
    path.write_bytes(first)
    load = LoraAdapter.load

    def load_and_change(model: LlamaModel, file: Path) -> LoraAdapter:
        path.write_bytes(second)
        return load(model, file)

    with (
        patch.object(LoraAdapter, "load", load_and_change),
        pytest.raises(ModelLoadError, match=r"adapter\.gguf: the adapter changed while it was loaded"),
    ):
        Engine.load(tiny_dense_path, adapters={"a": path}, n_ctx=512, n_threads=1)


def test_llama_cpp_is_told_of_adapters_only_where_they_change(
    smollm2: LlamaModel, make_context: Callable[..., LlamaContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(
        "forerun.native.adapters.llama_cpp.llama_set_adapters_lora", lambda *given: told.append(given[2])
    )
    loaded = LoraAdapter.load(smollm2, build_adapter(TinyAdapter(seed=1), smollm2.path))
    applied = AppliedAdapters({"a": loaded}, [make_context(smollm2)])
    for choice in (NONE, A, A, HALF, NONE, NONE):
        applied.apply(adapter_set(choice))
    assert told == [1, 1, 0]
    with pytest.raises(ValueError, match="the plan wants the adapter 'zz'"):
        applied.apply((("zz", 1.0),))
