"""Configurations, and engines composed on real models."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from forerun import (
    Engine,
    EngineClosedError,
    EngineConfig,
    IncompatibleDraftError,
    InvalidConfigError,
    InvalidRequestError,
    ModelLoadError,
    SamplingParams,
)
from forerun.compose import build
from forerun.compose_wanted import context_params
from forerun.engine.cores import physical_cores, usable_cpus
from forerun.models.machine_memory import FreeMemory
from tests.conftest import MakeTinyModel
from tests.support.tiny_models import SMALL_VOCABULARY, TinyModel


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_ctx": 0}, "n_ctx: must lie between 1 and 16777216, got 0"),
        ({"n_ctx": "many"}, "n_ctx: must be a whole number, got 'many'"),
        ({"n_ctx": True}, "n_ctx: must be a whole number"),
        ({"max_num_seqs": "all"}, "max_num_seqs: must be a whole number, got 'all'"),
        ({"n_seq_max": 257}, "n_seq_max: must lie between 1 and 256, got 257"),
        ({"n_threads": 0}, "n_threads: must lie between 1 and 1024, got 0"),
        ({"speculation": 65}, "speculation: must lie between 0 and 64, got 65"),
        ({"speculation": "some"}, "speculation: must be a whole number or one of 'auto', 'off', got 'some'"),
        ({"synthetic_acceptance": 1.5}, "synthetic_acceptance: must lie between 0 and 1, got 1.5"),
        ({"synthetic_acceptance": "1"}, "synthetic_acceptance: must be a number, got '1'"),
        ({"target_itl_ms": 0}, "target_itl_ms: must lie between 1 and 60000 ms, got 0"),
        ({"target_itl_ms": float("nan")}, "target_itl_ms: must lie between 1 and 60000 ms, got nan"),
        ({"target_itl_ms": "fast"}, "target_itl_ms: must be milliseconds or 'auto', got 'fast'"),
        ({"verification": "some"}, "verification: must be one of auto, match, rejection, got 'some'"),
        ({"suffix_tokens": -1}, "suffix_tokens: must lie between 0 and 67108864, got -1"),
        ({"cache_ram": -1}, "cache_ram: must lie between 0 and 1125899906842624, got -1"),
        ({"cache_ram": "2GiB"}, "cache_ram: must be a whole number, got '2GiB'"),
        ({"cache_disk": None}, "cache_disk: must be a whole number, got None"),
        ({"cache_dir": 5}, "cache_dir: must be a path, got 5"),
        ({"cache_dir": ""}, "cache_dir: the name is empty: give the path of a directory"),
        ({"cache_dir": "kv", "cache_ram": 0}, "cache_dir: prefixes reach the disk through host memory, but cache_ram"),
        ({"chat_template": 5}, "chat_template: must be a path, got 5"),
        ({"model": None}, "model: must be a path or a known name, got None"),
        ({"draft": 5}, "draft: must be a path or a known name, got 5"),
        ({"max_num_seqs": 20, "n_seq_max": 10}, "max_num_seqs: is 20, but there are only n_seq_max = 10 ids"),
        ({"max_num_seqs": 20, "max_num_batched_tokens": 10}, "a step holds only max_num_batched_tokens = 10 rows"),
    ],
)
def test_a_configuration_that_makes_no_sense_names_field_limit_and_value(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        EngineConfig(**{"model": "smollm2", **options})
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"n_seq_max": 256}, "dense", "n_seq_max: is 256; 1 id beside it is needed to copy prefixes out of the pool,"),
        ({"max_num_seqs": 256}, "dense", "is 256; 1 id beside it is needed"),
        ({"n_seq_max": 240, "speculation": 4}, "hybrid", "out of the pool and 16 to take rejected drafts back, and"),
        ({"n_seq_max": 241, "speculation": 4}, "hybrid", "is 241; with speculation, a recurrent or hybrid model needs"),
    ],
)
def test_ids_that_the_engine_needs_itself_are_counted(options: dict[str, Any], kind: str, words: str) -> None:
    has_state = kind == "hybrid"
    with pytest.raises(InvalidConfigError) as refusal:
        EngineConfig(**{"model": "smollm2", **options}).native_ids(has_state=has_state)
    assert words in str(refusal.value)
    fewer = {"model": "smollm2", **options, "n_seq_max": 200, "max_num_seqs": 16}
    ids = EngineConfig(**fewer).native_ids(has_state=has_state)
    assert ids == 201 + (16 if has_state else 0)
    assert EngineConfig(**{**fewer, "cache_ram": 0}).native_ids(has_state=has_state) == ids - 1
    assert EngineConfig(**{**fewer, "reuse_prefixes": False}).native_ids(has_state=has_state) == ids - 1


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 128),
        ({"draft": "d"}, 128),
        ({"max_num_seqs": 100, "draft": "d"}, 200),
        ({"speculation": 16}, 16 * 17),
        ({"speculation": 64}, 512),
        ({"max_num_batched_tokens": 20}, 20),
    ],
)
def test_rows_with_logits_are_those_that_may_be_sampled_from_and_fixed_drafts(
    options: dict[str, Any], rows: int
) -> None:
    assert EngineConfig(**{"model": "m", **options}).logit_rows == rows


def test_requests_that_run_keep_to_the_limits_that_are_said() -> None:
    assert EngineConfig(model="m").running == 16
    assert EngineConfig(model="m", n_seq_max=4).running == 4
    assert EngineConfig(model="m", max_num_batched_tokens=1).running == 1
    assert EngineConfig(model="m", max_num_seqs=40).running == 40


def test_a_path_may_be_a_path() -> None:
    paths: dict[str, Any] = {"model": Path("a") / "b.gguf", "draft": Path("c.gguf"), "cache_dir": Path("kv")}
    config = EngineConfig(**paths)
    assert (config.model, config.draft, config.cache_dir) == (str(Path("a", "b.gguf")), "c.gguf", "kv")


def test_an_unknown_option_is_not_dropped_in_silence() -> None:
    with pytest.raises(TypeError, match="n_cxt"):
        Engine.load("smollm2", n_cxt=512)


@pytest.mark.parametrize(
    ("draft", "speculation", "tokens"),
    [(None, None, 0), ("d", None, 32), (None, "auto", 32), ("d", 0, 0), ("d", "off", 0), (None, 3, 3)],
)
def test_drafting_is_off_without_a_draft_model_unless_asked_for(
    draft: str | None, speculation: Any, tokens: int
) -> None:
    assert EngineConfig(model="m", draft=draft, speculation=speculation).draft_tokens == tokens


def test_synthetic_acceptance_drafts_unless_told_otherwise() -> None:
    assert EngineConfig(model="m", synthetic_acceptance=0.5).drafts_by_gain
    assert EngineConfig(model="m", synthetic_acceptance=0.5, speculation=4).draft_tokens == 4


def test_cores_that_share_a_core_id_count_once(tmp_path: Path) -> None:
    for cpu in usable_cpus():
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text("0\n")
    assert physical_cores(tmp_path) == 1
    assert physical_cores(tmp_path / "nothing there") == len(usable_cpus())


@pytest.mark.parametrize(
    ("options", "has_gpu", "flash"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"n_gpu_layers": 0}, True, False),
        ({"flash_attention": True}, False, True),
        ({"flash_attention": False}, True, False),
    ],
)
def test_flash_attention_is_on_where_layers_are_on_a_gpu(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, has_gpu: bool, flash: bool
) -> None:
    monkeypatch.setattr("forerun.native.build.can_offload", lambda: has_gpu)
    params = context_params(EngineConfig(model="any", **options), 1024)
    assert params.flash_attention == flash
    assert params.n_ubatch == (512 if flash else 128)
    assert context_params(EngineConfig(model="any", n_ubatch=7, **options), 1024).n_ubatch == 7


@pytest.mark.model
@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 64},
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"max_num_batched_tokens": 20, "n_ubatch": 3},
        {"n_seq_max": 255, "n_ctx": 100},
        {"n_seq_max": 256, "n_ctx": 100, "reuse_prefixes": False},
        {"n_seq_max": 1, "max_num_seqs": 1},
        {"speculation": 3},
        {"flash_attention": True},
    ],
    ids=str,
)
def test_limits_below_what_llama_cpp_wants_change_no_answer(tiny_dense_path: Path, options: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with Engine.load(str(tiny_dense_path), n_ctx=256, n_threads=1) as engine:
        (plain,) = engine.generate("Once upon a time", params)
    with Engine.load(
        str(tiny_dense_path), **{"n_ctx": 256, "n_threads": 1, "checks_integrity": True, **options}
    ) as engine:
        (limited,) = engine.generate("Once upon a time", params)
    assert limited.text == plain.text


@pytest.mark.model
@pytest.mark.parametrize("draft_n_ctx", [8, 64, None])
def test_a_draft_with_little_room_drafts_less_and_changes_no_answer(
    tiny_dense_path: Path, tiny_medium_draft_path: Path, draft_n_ctx: int | None
) -> None:
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    options: dict[str, Any] = {
        "draft": str(tiny_medium_draft_path),
        "draft_n_ctx": draft_n_ctx,
        "speculation": 4,
        "n_ctx": 256,
        "n_threads": 1,
    }
    with Engine.load(str(tiny_dense_path), n_ctx=256, n_threads=1) as engine:
        (plain,) = engine.generate("Once upon a time", params)
    with Engine.load(str(tiny_dense_path), **options) as engine:
        (drafted,) = engine.generate("Once upon a time", params)
        stats = engine.stats()
    assert drafted.token_ids[:8] == plain.token_ids[:8]  # further on, near-ties may flip with the shape of the batch
    assert len(drafted.token_ids) == 48
    assert drafted.usage is not None
    assert (drafted.usage.drafted_tokens > 8) == (draft_n_ctx != 8)
    assert (stats.running, stats.waiting) == (0, 0)


@pytest.mark.model
def test_the_context_is_the_models_own_unless_told_otherwise(tiny_dense_path: Path) -> None:
    with Engine.load(str(tiny_dense_path), n_threads=1) as engine:
        assert 0 < engine.n_ctx <= 8192
        with pytest.raises(InvalidRequestError) as refusal:
            list(engine.generate([[5] * (engine.n_ctx + 1)]))
        assert str(engine.n_ctx) in str(refusal.value)
        assert str(engine.n_ctx + 1) in str(refusal.value)


@pytest.mark.model
def test_a_template_that_is_given_writes_conversations_and_prompts_instead_of_the_models_own(
    tiny_dense_path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}")
    with Engine.load(tiny_dense_path, n_threads=1, chat_template=file) as engine:
        assert engine.chat_text([{"role": "user", "content": "Hello"}]).text == "[user] Hello"
        assert engine.tokenizer.shown(engine.prompt("Hello").text_tokens).endswith("[user] Hello")


@pytest.mark.model
def test_a_broken_template_is_refused_before_any_weights_are_loaded(
    tiny_dense_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.compose._load", lambda *_: pytest.fail("weights were loaded"))
    (tmp_path / "chat.jinja").write_text("{% if %}")
    with pytest.raises(InvalidConfigError, match=r"chat_template: .*chat\.jinja is no Jinja template: line 1:"):
        Engine.load(tiny_dense_path, chat_template=tmp_path / "chat.jinja")


@pytest.mark.model
def test_closing_cuts_a_long_step_short(smollm2_path: Path) -> None:
    engine = Engine.load(str(smollm2_path), n_ctx=4096, max_num_batched_tokens=4096, n_ubatch=4096, n_threads=1)
    outputs = engine.generate([[500] * 4000], SamplingParams(max_tokens=1))
    time.sleep(0.3)  # the step, of many seconds, has begun
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 2
    with pytest.raises(EngineClosedError):
        next(outputs)


@pytest.mark.model
def test_an_engine_that_cannot_be_built_leaves_nothing_loaded(
    tiny_recurrent_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.native.context import LlamaContext
    from forerun.native.model import LlamaModel

    closed: list[Path] = []
    close = LlamaModel.close

    def recorded_close(model: LlamaModel) -> None:
        closed.append(model.path)
        close(model)

    def no_context(*_: object) -> None:
        raise ModelLoadError("no memory for a context")

    monkeypatch.setattr(LlamaModel, "close", recorded_close)
    monkeypatch.setattr(LlamaContext, "__init__", no_context)
    with pytest.raises(ModelLoadError, match="no memory for a context"):
        build(EngineConfig(model=str(tiny_recurrent_path)))
    assert closed == [tiny_recurrent_path]


@pytest.mark.model
def test_a_pair_that_cannot_work_is_refused_before_any_weights_are_loaded(
    tiny_dense_path: Path, tiny_permuted_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.compose._load", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(IncompatibleDraftError, match="2 of 4096 tokens differ"):
        Engine.load(str(tiny_dense_path), draft=str(tiny_permuted_path))
    monkeypatch.setattr("forerun.models.preflight.free_memory", lambda: FreeMemory(2**20, "this machine"))
    with pytest.raises(ModelLoadError, match=r"too little memory: \d+ MiB needed, 1\.0 MiB free"):
        Engine.load(str(tiny_dense_path))


@pytest.mark.model
@pytest.mark.parametrize("padded", ["target", "draft"])
def test_a_vocabulary_that_is_only_padded_drafts_and_changes_no_answer(
    tiny_dense_path: Path, tiny_model: MakeTinyModel, padded: str
) -> None:
    pair = [str(tiny_model(TinyModel(vocabulary="padded"))), str(tiny_dense_path)]
    target, draft = pair if padded == "target" else reversed(pair)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    prompts = [list(range(100, 130)), [*range(200, 230), SMALL_VOCABULARY - 1]]
    if padded == "target":
        prompts.append([*range(300, 330), SMALL_VOCABULARY])  # an id that the draft does not know: answered without it
    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "max_num_seqs": 4}
    with Engine.load(target, **options) as engine:
        plain = [next(engine.generate(prompt, params)).token_ids for prompt in prompts]
    with Engine.load(target, draft=draft, speculation=4, **options) as engine:
        drafted = [next(engine.generate(prompt, params)) for prompt in prompts]
    assert [output.token_ids[:8] for output in drafted] == [tokens[:8] for tokens in plain]
    usages = [output.usage for output in drafted if output.usage is not None]
    by_model = [usage.drafters.get("draft", (0, 0))[0] > 0 for usage in usages]
    assert by_model == [True, True, False][: len(prompts)]
