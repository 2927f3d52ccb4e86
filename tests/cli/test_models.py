"""`forerun models show | list | key`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from forerun.compose_models import served_id
from forerun.core.config import MODEL_DRAFTER
from forerun.engine_config import EngineConfig
from forerun.models.file_digest import file_digest
from forerun.models.store import ModelStore, StoredFile
from tests.cli.conftest import Forerun
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor

SHA = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def nothing_of_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache, configuration and models of nobody; returns the folder of the configuration."""
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    for variable in ("FORERUN_MODELS", "FORERUN_CATALOG"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "xdg_config_home" / "forerun"
    folder.mkdir(parents=True)
    return folder


def tiny(path: Path, **entries: bytes) -> Path:
    """The least that is a model to `models key`."""
    keys = {
        "general.architecture": gguf.text("llama"),
        "llama.block_count": gguf.u32(1),
        "llama.context_length": gguf.u32(128),
        "llama.embedding_length": gguf.u32(8),
        "tokenizer.ggml.model": gguf.text("gpt2"),
    }
    GgufFile(keys | entries, [Tensor("token_embd.weight", (8, 3), 0, bytes(96))]).write(path)
    return path


def test_an_id_is_shown_with_what_the_catalog_and_the_file_say(forerun: Forerun) -> None:
    result = forerun("models", "show", "smollm2")
    assert result.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if not line.startswith("MTP"))
    assert lines["id"] == "smollm2: SmolLM2 135M Instruct, Q4_1"
    assert lines["verified"].startswith("yes")
    assert lines["architecture"] == "llama, 30 layers, width 576, 9 heads (3 for keys and values)"
    assert lines["quantisation"].startswith("Q4_1: Q4_1 ")
    assert lines["vocabulary"] == "gpt2, smollm: 49152 tokens, 48900 merges"
    assert lines["memory"] == "dense"


def test_an_id_whose_files_are_not_here_is_shown_with_the_command_that_fetches_them(forerun: Forerun) -> None:
    shown = forerun("models", "show", "qwen3-8b").stdout
    assert "run `forerun pull qwen3-8b`" in shown
    assert "Qwen3-0.6B-Q8_0.gguf" in shown
    report = json.loads(forerun("models", "show", "qwen3-8b", "--json").stdout)
    assert (report["file"], report["catalog"]["context_length"]) == (None, 40_960)


def test_a_file_is_shown_as_json_with_what_it_says_nothing_of_as_null(forerun: Forerun, tmp_path: Path) -> None:
    report = json.loads(forerun("models", "show", str(tiny(tmp_path / "m.gguf")), "--json").stdout)
    assert report["catalog"] is None
    assert (report["file"]["context_length"], report["file"]["name"], report["file"]["memory"]) == (128, None, "dense")
    assert report["file"]["parts"] == [{"path": str(tmp_path / "m.gguf"), "size": report["file"]["size"]}]


def test_control_characters_and_markup_in_a_file_s_texts_do_nothing(forerun: Forerun, tmp_path: Path) -> None:
    name = {"general.name": gguf.text("[bold]x[/bold]\x1b[31m\nid  forged")}
    shown = forerun("models", "show", str(tiny(tmp_path / "m.gguf", **name))).stdout
    assert "[bold]x[/bold]" in shown
    assert "\x1b" not in shown
    assert not [line for line in shown.splitlines() if line.startswith("id")]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nosuchmodel", "unknown model 'nosuchmodel'"),
        ("smolm2", "such as smollm2"),
        ("missing.gguf", "missing.gguf: no such file"),
        ("hf:a/b/c.gguf", "hf:a/b/c.gguf is not here: run `forerun pull hf:a/b/c.gguf`"),
    ],
)
@pytest.mark.parametrize("command", ["show", "key"])
def test_what_is_not_there_is_one_line(forerun: Forerun, command: str, name: str, told: str) -> None:
    result = forerun("models", command, name)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert told in line


def test_a_list_says_what_is_here_and_what_was_verified(forerun: Forerun) -> None:
    models = {row["id"]: row for row in json.loads(forerun("models", "list", "--json").stdout)["models"]}
    assert (models["smollm2"]["here"], models["smollm2"]["verified"]) == (True, True)
    assert (models["qwen3-8b"]["here"], models["qwen3-8b"]["method"]) == (False, "draft")
    assert len([row for row in models.values() if row["method"] == "draft"]) >= 11
    here = json.loads(forerun("models", "list", "--here", "--json").stdout)["models"]
    assert [row["id"] for row in here] == ["smollm2"]
    assert "smollm2" in forerun("models", "list").stdout


def test_a_malformed_catalog_is_one_line_with_file_and_field(forerun: Forerun, nothing_of_the_user_s: Path) -> None:
    file = nothing_of_the_user_s / "catalog.toml"
    file.write_text("version = 1\n[[models]]\nid = 'x'\ncolour = 'red'\n")
    for arguments in (("list",), ("show", "smollm2"), ("key", "smollm2")):
        result = forerun("models", *arguments)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"forerun: {file}: models[0]")
    assert forerun("models", "show", str(tiny(file.with_name("m.gguf")))).exit_code == 0, "a path needs no catalog"


def test_a_key_is_told_alone_or_with_all_that_it_is_made_of(forerun: Forerun, tmp_path: Path) -> None:
    target = tiny(tmp_path / "t.gguf")
    draft = tiny(tmp_path / "d.gguf", **{"general.name": gguf.text("draft")})
    plain = forerun("models", "key", str(target))
    assert re.fullmatch(r"bundle_[0-9a-f]{64}\n", plain.stdout)
    report = json.loads(forerun("models", "key", str(target), "--draft", str(draft), "--json").stdout)
    assert report["bundle"] != plain.stdout.strip()
    assert report["method"] == "draft"
    assert report["target"]["package"] != report["draft"]["package"]
    assert [one["role"] for one in report["draft"]["files"]] == ["weights"]
    assert forerun("models", "key", str(target), "--draft", str(draft), "--mtp").exit_code == 2


@pytest.mark.parametrize("command", ["show", "list", "key"])
def test_the_help_has_examples(forerun: Forerun, command: str) -> None:
    assert f"forerun models {command}" in forerun("models", command, "--help").stdout


def listing(folder: Path, target: Path, draft: Path) -> str:
    """A catalog in which `mine` is a target with a draft, both pulled; the draft's source."""
    store, tables = ModelStore.of_user(), []
    for name, path in (("target", target), ("draft", draft)):
        content = StoredFile(path.name, "weights", path.stat().st_size, file_digest(path))
        shutil.copyfile(path, store.staging(name) / path.name)
        store.place(name, "a test", (content,))
        tables.append(f'file = "{path.name}"\nsha256 = "{content.sha256}"\nsize = {content.size}\n')
    entry = 'id = "mine-0.1"\nname = "Mine"\nrepository = "hf:me/mine"\ncontext_length = 8192\nlicence = "MIT"\n'
    of_draft = f'[models.speculative_decoding.draft]\nrepository = "hf:me/small"\n{tables[1]}'
    speculation = f'[models.speculative_decoding]\nmethod = "draft"\n{of_draft}'
    text = f"version = 1\n[[models]]\n{entry}[[models.files]]\n{tables[0]}{speculation}"
    (folder / "catalog.toml").write_text(text)
    return f"hf:me/small/{draft.name}"


@pytest.mark.model
def test_an_id_is_checked_with_its_draft_beside_it_and_told_apart_from_the_target_alone(
    forerun: Forerun, nothing_of_the_user_s: Path, tiny_dense_path: Path, tiny_medium_draft_path: Path
) -> None:
    listing(nothing_of_the_user_s, tiny_dense_path, tiny_medium_draft_path)
    options = ("--no-measure", "--n-ctx", "512")
    with_draft = forerun("check", "mine-0.1", *options)
    assert with_draft.exit_code == 0, with_draft.output
    assert f"draft       {tiny_medium_draft_path.name}: llama" in with_draft.stdout
    assert "every id means the same to both" in with_draft.stdout
    alone = forerun("check", "mine-0.1", "--speculation", "off", *options)
    assert f"draft       {tiny_medium_draft_path.name}" not in alone.stdout
    pair, target = (forerun("models", "key", *names).stdout for names in (["mine-0.1"], [str(tiny_dense_path)]))
    files = ("models", "key", str(tiny_dense_path), "--draft", str(tiny_medium_draft_path))
    assert pair == forerun(*files).stdout != target


@pytest.mark.model
def test_an_engine_that_is_loaded_by_an_id_drafts_with_the_draft_of_the_catalog(
    nothing_of_the_user_s: Path, tiny_dense_path: Path, tiny_medium_draft_path: Path
) -> None:
    from forerun import Engine, SamplingParams

    listing(nothing_of_the_user_s, tiny_dense_path, tiny_medium_draft_path)
    with Engine.load("mine-0.1", n_ctx=512, n_threads=1, speculation=4) as engine:
        (answer,) = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=24, ignore_eos=True, logit_bias={2: -100.0}))
    assert MODEL_DRAFTER in {name for name, _ in answer.origins}


@pytest.mark.model
def test_a_draft_that_is_not_here_is_told_with_the_command_that_fetches_it(
    forerun: Forerun, nothing_of_the_user_s: Path, tiny_dense_path: Path, tmp_path: Path
) -> None:
    other = tiny(tmp_path / "other.gguf")
    listing(nothing_of_the_user_s, tiny_dense_path, other)
    ModelStore.of_user().remove("draft")
    result = forerun("check", "mine-0.1", "--no-measure")
    assert result.exit_code == 2
    assert "refused  draft       hf:me/small/other.gguf is not here: run `forerun pull mine-0.1`" in result.stdout


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b"),
        ("/models/Large.Q4_K_M.gguf", "Large.Q4_K_M"),
        ("hf:them/theirs/m.gguf", "m"),
        ("smollm2", "smollm2"),
    ],
)
def test_clients_call_a_model_by_its_id_or_by_the_name_of_its_file(name: str, served: str) -> None:
    assert served_id(EngineConfig(model=name).model) == served
