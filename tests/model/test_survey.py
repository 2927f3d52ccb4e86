"""What is said about a model before it is loaded is what llama.cpp then does."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import ModelFileError, ModelLoadError
from forerun.models import survey
from forerun.models.gguf_header import read_header
from forerun.models.survey import ModelSurvey, survey_model
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.support.tiny_models import TinyModel, assemble

pytestmark = pytest.mark.model

MIB = 1024 * 1024
PARAMS = ContextParams(n_ctx=2048, n_batch=256, n_ubatch=256, n_seq_max=64, n_threads=1, n_threads_batch=1)
MODEL = {"n_gpu_layers": 0}
KINDS = {  # with a vocabulary whose logits are worth counting
    "dense": TinyModel(vocabulary="smollm2"),
    "sliding window": TinyModel("gemma3", layers=6, vocabulary="smollm2"),
    "hybrid": TinyModel("lfm2", layers=4, vocabulary="smollm2"),
    "recurrent": TinyModel("mamba", vocabulary="smollm2"),
}


@pytest.fixture(autouse=True)
def cache_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "forerun" / "surveys.json"


def surveyed(path: Path, params: ContextParams = PARAMS) -> ModelSurvey:
    return survey_model(read_header(path), MODEL, params.numbers())


def allocated(path: Path, caplog: pytest.LogCaptureFixture) -> dict[str, float]:
    """MiB that llama.cpp says it allocated for a real context, by kind of buffer."""
    model = LlamaModel.load(path, n_gpu_layers=0)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "forerun.native"):
        LlamaContext(model, PARAMS).close()
    model.close()
    sizes = re.findall(r" (KV|RS|compute|output) buffer size = +([\d.]+) MiB", caplog.text)
    return {kind: sum(float(mib) for name, mib in sizes if name == kind) for kind in ("KV", "RS", "compute", "output")}


@pytest.mark.parametrize("kind", ["smollm2", *KINDS])
def test_every_buffer_has_the_size_that_was_foretold(
    smollm2_path: Path, tiny_model: MakeTinyModel, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = smollm2_path if kind == "smollm2" else tiny_model(KINDS[kind])
    told, real = surveyed(path), allocated(path, caplog)
    for name, size in {"KV": told.kv, "RS": told.state, "compute": told.compute, "output": told.outputs}.items():
        assert size / MIB == pytest.approx(real[name], rel=0.01, abs=0.02), name
    assert real["compute"] > 0


def test_what_is_copied_for_the_processor_is_foretold(
    smollm2_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a model with some weights in a type that llama.cpp repacks, where the processor has a layout for it."""
    file = assemble(TinyModel(), smollm2_path)
    blocks = bytes(18 * 64 * 128 // 32)  # Q4_0, and all zero
    file.tensors = [
        dataclasses.replace(tensor, ggml_type=2, data=blocks) if "ffn_up" in tensor.name else tensor
        for tensor in file.tensors
    ]
    file.write(tmp_path / "m.gguf")
    with caplog.at_level(logging.DEBUG, "forerun.native"):
        LlamaModel.load(tmp_path / "m.gguf", n_gpu_layers=0).close()
    real = sum(float(mib) for mib in re.findall(r"CPU_REPACK model buffer size = +([\d.]+) MiB", caplog.text))
    assert surveyed(tmp_path / "m.gguf").repacked / MIB == pytest.approx(real, abs=0.01)
    assert surveyed(smollm2_path).weights > surveyed(smollm2_path).repacked


_LOADED = """
import sys, json
from pathlib import Path
import numpy as np
from forerun.native.batch import Batch
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel, start_backend

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile"))) * 1024

start_backend()
before = resident()
model = LlamaModel.load(Path(sys.argv[1]), n_gpu_layers=0)
params = ContextParams(**json.loads(sys.argv[2]))
context = LlamaContext(model, params)
batch = Batch(context.n_batch)
for row in range(params.n_batch):
    batch.add_row(row + 100, row, 0)
context.decode(batch)
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("kind", ["smollm2", *KINDS])
def test_the_sum_is_what_the_process_grows_by_within_a_tenth(
    smollm2_path: Path, tiny_model: MakeTinyModel, kind: str
) -> None:
    path = smollm2_path if kind == "smollm2" else tiny_model(KINDS[kind])
    # As many ids as rows, so that the logits of a whole batch are what was counted.
    settings: dict[str, Any] = {
        "n_ctx": 2048,
        "n_batch": 64,
        "n_ubatch": 64,
        "n_seq_max": 64,
        "n_threads": 1,
        "n_threads_batch": 1,
    }
    told = surveyed(path, ContextParams(**settings))
    command = [sys.executable, "-c", _LOADED, str(path), json.dumps(settings)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert told.total == pytest.approx(grown, rel=0.1, abs=16 * MIB), f"{told.total / MIB:.0f}, {grown / MIB:.0f} MiB"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dense", "dense memory"),
        ("sliding window", "sliding window of 64 tokens"),
        ("hybrid", "hybrid memory (partly recurrent)"),
        ("recurrent", "recurrent memory"),
    ],
)
def test_the_kind_of_memory_is_known_beforehand(tiny_model: MakeTinyModel, kind: str, words: str) -> None:
    told = surveyed(tiny_model(KINDS[kind]))
    assert told.memory == words
    assert (told.n_ctx_train, told.gpus) == (8192, ())


def test_states_of_many_sequences_are_worked_out_without_allocating_them(
    tiny_recurrent_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = surveyed(tiny_recurrent_path)
    script = survey._CHILD.read_text().replace(
        "_MOST_STATE = 256 * _MIB", "_MOST_STATE = 400_000"
    )  # of 64 ids about 20
    (tmp_path / "child.py").write_text(script)
    monkeypatch.setattr(survey, "_CHILD", tmp_path / "child.py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    extrapolated = surveyed(tiny_recurrent_path)
    assert extrapolated.state == pytest.approx(whole.state, rel=0.03)
    assert extrapolated.outputs == pytest.approx(whole.outputs, rel=0.02)


def test_a_survey_is_remembered_for_its_file_and_parameters(
    tiny_dense_path: Path, cache_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = surveyed(tiny_dense_path)
    assert cache_file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(survey, "run_child", lambda *_, **__: pytest.fail("asked again"))
    assert surveyed(tiny_dense_path) == first
    with pytest.raises(pytest.fail.Exception):
        surveyed(tiny_dense_path, ContextParams(n_ctx=64, n_threads=1, n_threads_batch=1))


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"a": 1}', b"[1, 2]"])
def test_a_corrupt_cache_is_asked_over(tiny_dense_path: Path, cache_file: Path, content: bytes) -> None:
    cache_file.parent.mkdir(parents=True)
    cache_file.write_bytes(content)
    assert surveyed(tiny_dense_path).weights > 0


@pytest.mark.parametrize(
    ("code", "error", "told"),
    [
        ("import os; os.kill(os.getpid(), 11)", ModelFileError, "SIGSEGV"),
        ("raise SystemExit(4)", ModelFileError, "refused it"),
        ("raise SystemExit(5)", ModelLoadError, "cannot be imported"),
        ("print('no')", ModelFileError, "makes no sense"),
        ("print('{}')", ModelFileError, "makes no sense"),
        ("pass", ModelFileError, "makes no sense"),
    ],
)
def test_a_child_that_dies_or_says_nonsense_is_a_model_error(
    tmp_path: Path, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: type[Exception], told: str
) -> None:
    (tmp_path / "child.py").write_text(code)
    monkeypatch.setattr(survey, "_CHILD", tmp_path / "child.py")
    with pytest.raises(error, match=told):
        surveyed(tiny_dense_path)
