"""What a GGUF says of itself, against what is known of it, and against what llama.cpp says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.compose import preflight
from forerun.engine_config import EngineConfig
from forerun.errors import ModelFileError
from forerun.models.inspection import describe
from tests.conftest import MakeTinyModel
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor
from tests.support.tiny_models import TinyModel

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a GGUF of the given entries and tensors; its path."""

    def of(*tensors: Tensor, name: str = "model.gguf", architecture: str = "llama", **entries: bytes) -> Path:
        keys = {key.replace("__", "."): value for key, value in entries.items()}
        GgufFile({"general.architecture": gguf.text(architecture), **keys}, list(tensors)).write(tmp_path / name)
        return tmp_path / name

    return of


def block(layer: int, name: str, elements: int = 32, kind: int = 0) -> Tensor:
    size = {0: 4 * elements, 2: elements // 32 * 18}[kind]
    return Tensor(f"blk.{layer}.{name}.weight", (elements,), kind, bytes(size))


def test_the_default_model_is_described(smollm2_path: Path) -> None:
    found = describe(smollm2_path)
    assert (found.kind, found.architecture, found.file_type, found.licence) == ("model", "llama", "Q4_1", "apache-2.0")
    assert (found.parameters, found.layers, found.embedding_length) == (134_515_008, 30, 576)
    assert (found.heads, found.kv_heads, found.context_length) == (9, (3,), 8192)
    assert found.vocabulary is not None
    assert (found.vocabulary.kind, found.vocabulary.pre, found.vocabulary.tokens) == ("gpt2", "smollm", 49_152)
    assert (found.template, found.template_has_tools, found.memory) == (368, False, "dense")
    assert found.size == smollm2_path.stat().st_size
    assert 5 < found.bits_per_parameter < 6
    assert sum(share.tensors for share in found.tensors) == 272
    assert found.tensors[0].type == "Q4_1"


@pytest.mark.model
@pytest.mark.parametrize(
    ("recipe", "memory"),
    [
        (TinyModel(), "dense"),
        (TinyModel("gemma3", layers=6), "sliding window of 64 tokens"),
        (TinyModel("lfm2", layers=4), "hybrid: 2 recurrent layers, 2 with attention"),
        (TinyModel("mamba"), "recurrent, 2 layers"),
        (TinyModel("qwen35"), "hybrid: 1 recurrent layers, 2 with attention"),
        (TinyModel("glm4moe", layers=1), "dense"),
    ],
)
def test_the_kind_of_memory_is_what_llama_cpp_makes_of_the_file(
    tiny_model: MakeTinyModel, recipe: TinyModel, memory: str
) -> None:
    path = tiny_model(recipe)
    found = describe(path)
    assert found.memory == memory
    target = preflight(EngineConfig(model=str(path), n_ctx=256, mtp=False)).target
    assert target is not None
    survey = target.survey
    assert (survey.is_recurrent, survey.is_hybrid, survey.n_swa) == (
        bool(found.stateful_layers and not found.attention_layers),
        bool(found.stateful_layers and found.attention_layers),
        found.sliding_window,
    )
    assert (survey.n_vocab, survey.n_ctx_train) == (
        found.vocabulary.tokens if found.vocabulary else 0,
        found.context_length,
    )


def test_a_head_that_can_draft_and_rope_in_sections_are_told(tiny_hybrid_mtp_path: Path) -> None:
    found = describe(tiny_hybrid_mtp_path)
    assert (found.nextn_layers, found.why_no_mtp) == (1, None)
    assert (found.rope_sections, found.rope_base) == ((3, 3, 2, 0), 10_000.0)


def test_an_embedding_model_and_an_adapter_are_called_so(tiny_model: MakeTinyModel, write: Write) -> None:
    found = describe(tiny_model(TinyModel("bert")))
    assert (found.kind, found.pooling) == ("embedding model", "mean")
    adapter = describe(write(block(0, "attn_q"), general__type=gguf.text("adapter")))
    assert (adapter.kind, adapter.base_model) == ("LoRA adapter", "llama")


@pytest.mark.parametrize(
    ("architecture", "kind"), [("clip", "projector"), ("imatrix", "importance matrix"), ("llama", "vocabulary")]
)
def test_what_is_no_model_is_called_what_it_is(write: Write, architecture: str, kind: str) -> None:
    tensors = [] if kind == "vocabulary" else [block(0, "x")]
    assert describe(write(*tensors, architecture=architecture)).kind == kind


def test_parameters_and_shares_count_the_tensors_of_all_parts(write: Write) -> None:
    for part in range(3):
        split = {"split__no": gguf.u32(part), "split__count": gguf.u32(3)}
        write(block(part, "attn_output", 64, 2), name=f"m-{part + 1:05}-of-00003.gguf", **split)
    first = write(block(9, "ffn"), name="m-00001-of-00003.gguf", split__no=gguf.u32(0), split__count=gguf.u32(3))
    found = describe(first)
    assert (found.parameters, found.missing, found.attention_layers) == (32 + 2 * 64, (), 2)
    assert [(share.type, share.tensors, share.nbytes) for share in found.tensors] == [("F32", 1, 128), ("Q4_0", 2, 72)]
    assert found.size == sum(path.stat().st_size for path in first.parent.glob("m-*"))


def test_a_part_that_is_missing_or_of_another_model_is_told_as_missing(write: Write) -> None:
    split = {"split__count": gguf.u32(3)}
    first = write(block(0, "x"), name="m-00001-of-00003.gguf", **split)
    other = write(block(0, "x"), name="m-00002-of-00003.gguf", split__count=gguf.u32(5))
    assert describe(first).missing == (other, first.with_name("m-00003-of-00003.gguf"))


def test_numbers_that_make_no_sense_are_left_out(write: Write) -> None:
    path = write(
        block(0, "x"),
        general__file_type=gguf.u32(999),
        llama__context_length=gguf.text("long"),
        llama__pooling_type=gguf.u32(77),
        llama__rope__freq_base=gguf.f32(float("nan")),
        llama__rope__dimension_sections=gguf.u32_array([1] * 1_000),
        llama__attention__head_count_kv=gguf.string_array([b"a"]),
    )
    found = describe(path)
    assert (found.file_type, found.context_length, found.pooling, found.rope_base) == ("type 999", None, None, None)
    assert (found.rope_sections, found.kv_heads) == ((), ())


def test_heads_that_differ_from_layer_to_layer_are_told_one_by_one(write: Write) -> None:
    of = {"llama__attention__head_count_kv": gguf.u32_array([0, 2, 2])}
    assert describe(write(block(0, "x"), **of)).kv_heads == (0, 2, 2)
    of = {"llama__attention__head_count_kv": gguf.u32_array([2, 2, 2])}
    assert describe(write(block(0, "x"), **of)).kv_heads == (2,)


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("hello")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        describe(tmp_path / "m.gguf")
