"""The generated models are fit to be test subjects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.models.validate import read_model_header
from tests.conftest import MakeTinyModel
from tests.support.tiny_models import TinyModel, assemble, build

# In a process of its own: this file owns neither the native library's settings nor its log.
_MEASURE = """
import json, os, sys
os.environ["GOMP_SPINCOUNT"] = "10000"
import numpy as np, llama_cpp.llama_cpp as llama

quiet = llama.llama_log_callback(lambda level, text, data: None)
llama.llama_log_set(quiet, None)
model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
limits = llama.llama_context_default_params()
limits.n_ctx, limits.n_batch, limits.n_ubatch, limits.n_seq_max, limits.kv_unified = 1024, 64, 64, 4, True
limits.n_threads = limits.n_threads_batch = 2
context = llama.llama_init_from_model(model, limits)
vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
batch = llama.llama_batch_init(64, 0, 1)

def logits(tokens, sequence, rows):
    found = []
    for start in range(0, len(tokens), rows):
        part = tokens[start:start + rows]
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 1
            batch.seq_id[i][0] = sequence
        assert llama.llama_decode(context, batch) == 0
        for i in range(len(part)):
            row = llama.llama_get_logits_ith(context, i)
            found.append(np.ctypeslib.as_array(row, shape=(vocabulary,)).copy())
    return np.array(found)

tokens = np.random.default_rng(7).integers(20, vocabulary, 64).tolist()
alone, blocks, batched = (logits(tokens, sequence, rows) for sequence, rows in ((0, 1), (1, 5), (2, 64)))
best = np.sort(alone, axis=1)
noise = max(np.median(np.abs(alone - other).max(axis=1)) for other in (blocks, batched))
print(json.dumps({"gap": float(np.median(best[:, -1] - best[:, -2])), "noise": float(noise),
                  "specials": int((alone.argmax(axis=1) < 17).sum()), "best": len(set(alone.argmax(axis=1).tolist()))}))
"""


@pytest.mark.model
@pytest.mark.parametrize(
    "recipe",
    [
        TinyModel(),
        TinyModel("gemma3", layers=6),
        TinyModel("lfm2", layers=4),
        TinyModel("mamba"),
        TinyModel("glm4moe", layers=1),
        TinyModel("qwen35", layers=2),
    ],
    ids=lambda recipe: recipe.kind,
)
def test_gaps_between_the_best_logits_are_far_above_the_noise_between_batch_shapes(
    tiny_model: MakeTinyModel, recipe: TinyModel
) -> None:
    command = [sys.executable, "-c", _MEASURE, str(tiny_model(recipe))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr
    measured = json.loads(ended.stdout)
    assert measured["gap"] > 5 * measured["noise"]
    assert measured["specials"] == 0
    assert measured["best"] > 48  # of 64: varied output, no loop


def test_a_recipe_determines_its_file_byte_for_byte(tmp_path: Path, smollm2_path: Path) -> None:
    one = build(TinyModel(noise=0.1), smollm2_path, tmp_path / "one")
    other = build(TinyModel(noise=0.1), smollm2_path, tmp_path / "other")
    assert one.name == other.name
    assert one.read_bytes() == other.read_bytes()


def test_a_noisy_copy_differs_in_its_weights_only_and_only_a_little(smollm2_path: Path) -> None:
    import numpy as np

    clean, noisy = (assemble(TinyModel(noise=noise), smollm2_path) for noise in (0.0, 0.02))
    assert clean.entries == noisy.entries
    ours, theirs = (np.frombuffer(model.tensors[0].data, np.float16).astype(np.float32) for model in (clean, noisy))
    assert 0.9995 < np.corrcoef(ours, theirs)[0, 1] < 0.9999


def test_generated_models_are_small_and_carry_the_beginning_of_the_real_tokenizer(
    tiny_dense_path: Path, smollm2_path: Path
) -> None:
    tiny, real = read_model_header(tiny_dense_path), read_model_header(smollm2_path)
    assert tiny.file_size < 1_500_000
    assert tiny.metadata["tokenizer.chat_template"] == real.metadata["tokenizer.chat_template"]
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        ours, theirs = (header.array(key) for header in (tiny, real))
        assert ours is not None
        assert theirs is not None
        assert ours.strings() == theirs.strings()[: len(ours.strings())]
