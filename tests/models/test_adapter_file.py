"""Adapter files that cannot be used are refused before llama.cpp sees them, in one line that names file and fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import Engine
from forerun.compose import check
from forerun.engine_config import EngineConfig
from forerun.errors import InvalidConfigError, ModelError, ModelFileError, ModelNotFoundError
from forerun.models.adapter_file import read_adapter_header
from forerun.models.findings import Verdict
from forerun.models.gguf_header import GgufHeader, read_header
from tests.conftest import MakeTinyModel
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor
from tests.support.tiny_adapters import TinyAdapter, assemble_adapter, build_adapter
from tests.support.tiny_models import SMALL_VOCABULARY, TinyModel

Change = Callable[[GgufFile], None]


@pytest.fixture(scope="module")
def base(tiny_dense_path: Path) -> GgufHeader:
    return read_header(tiny_dense_path)


def entry(key: str, value: bytes) -> Change:
    return lambda file: file.entries.update({key: value})


def without(key: str) -> Change:
    return lambda file: file.entries.update({}) if file.entries.pop(key) else None


def without_tensor(file: GgufFile) -> None:
    file.tensors.pop()


def without_tensors(file: GgufFile) -> None:
    file.tensors.clear()


def renamed(old: str, new: str) -> Change:
    def change(file: GgufFile) -> None:
        file.tensors = [replace(tensor, name=tensor.name.replace(old, new)) for tensor in file.tensors]

    return change


def narrower(file: GgufFile) -> None:
    first = file.tensors[0]
    inputs, rank = first.shape
    file.tensors[0] = Tensor(first.name, (inputs // 2, rank), first.ggml_type, first.data[: len(first.data) // 2])


def of_the_embedding(file: GgufFile) -> None:
    tokens, width, rank = SMALL_VOCABULARY, 64, 1
    file.tensors = [
        Tensor("token_embd.weight.lora_a", (rank, tokens), 0, bytes(4 * rank * tokens)),
        Tensor("token_embd.weight.lora_b", (rank, width), 0, bytes(4 * rank * width)),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("general.type"), "not an adapter (general.type is not given)"),
        (entry("general.type", gguf.text("model")), "not an adapter (general.type is model)"),
        (entry("adapter.type", gguf.text("ia3")), "an adapter of type ia3: only LoRA is supported"),
        (entry("general.architecture", gguf.text("qwen2")), "an adapter for qwen2 models, but"),
        (entry("adapter.lora.alpha", gguf.u32(8)), "'adapter.lora.alpha' is no float"),
        (entry("adapter.alora.invocation_tokens", gguf.u32_array([1, 2])), "an activated LoRA"),
        (without_tensor, "has no place in it, or none beside it"),
        (without_tensors, "it has no tensors"),
        (renamed("lora_b", "lora_c"), "has no place in it, or none beside it"),
        (renamed("blk.1.", "blk.7."), "for another model than"),
        (narrower, "for another model than"),
        (of_the_embedding, "the token embedding, which this model also uses as its output"),
    ],
)
def test_what_is_no_adapter_for_this_model_is_refused(
    base: GgufHeader, tmp_path: Path, change: Change, words: str
) -> None:
    file = assemble_adapter(TinyAdapter(), base)
    change(file)
    path = tmp_path / "broken.gguf"
    file.write(path)
    with pytest.raises(ModelFileError) as refused:
        read_adapter_header(path, base)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert "\n" not in message


def test_missing_foreign_and_truncated_files_are_refused(base: GgufHeader, tmp_path: Path) -> None:
    path = tmp_path / "adapter.gguf"
    with pytest.raises(ModelNotFoundError, match="no such file"):
        read_adapter_header(path, base)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        read_adapter_header(path, base)
    assemble_adapter(TinyAdapter(), base).write(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ModelFileError, match="truncated"):
        read_adapter_header(path, base)


def test_building_an_engine_and_checking_refuse_for_the_same_reason(tiny_dense_path: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    with pytest.raises(ModelError, match=r"none\.gguf: no such file"):
        Engine.load(tiny_dense_path, adapters={"a": missing})
    found = check(EngineConfig(model=str(tiny_dense_path), adapters={"a": missing}), measures=False).preflight
    assert [finding.message for finding in found.findings if finding.verdict is Verdict.REFUSED] == [
        f"{missing}: no such file"
    ]


def test_an_adapter_of_another_model_is_refused_naming_it(tiny_dense_path: Path, tiny_model: MakeTinyModel) -> None:
    other = build_adapter(TinyAdapter(), tiny_model(TinyModel(layers=4)))
    with pytest.raises(ModelFileError, match="for another model than"):
        Engine.load(tiny_dense_path, adapters={"a": other})


def test_a_fitting_adapter_is_told_with_what_it_takes(tiny_dense_path: Path) -> None:
    path = build_adapter(TinyAdapter(), tiny_dense_path)
    found = check(EngineConfig(model=str(tiny_dense_path), adapters={"sql": path}), measures=False).preflight
    assert found.is_usable
    told = [finding.message for finding in found.findings if finding.subject == "adapter"]
    assert told == [f"sql: {path.name}, 6 weights adapted, 0.0 MiB"]
    assert found.needed > sum(candidate.survey.total for candidate in found.candidates)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a"], "maps names to files"),
        ({"": "x.gguf"}, "a name is text without '='"),
        ({"a=b": "x.gguf"}, "a name is text without '='"),
        ({"a": ""}, "the file of 'a' must be a path"),
        ({"a": 3}, "the file of 'a' must be a path"),
    ],
)
def test_names_and_files_that_make_no_sense_are_refused(given: object, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        EngineConfig(model="m.gguf", adapters=given)  # type: ignore[arg-type]
