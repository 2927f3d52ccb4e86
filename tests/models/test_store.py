"""The store: models appear whole, go whole, and what lies there besides harms nobody."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ModelNotFoundError
from forerun.models.resolve import resolve_model
from forerun.models.store import ModelBusyError, ModelStore, StoredFile, StoredModel, folder_name, is_file_name
from forerun.models.verifying import fault_of

CONTENT = b"the weights"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def placed(store: ModelStore, model_id: str = "m", content: bytes = CONTENT) -> StoredModel:
    staging = store.staging(model_id)
    (staging / "m.gguf").write_bytes(content)
    (staging / "m.gguf.part.json").write_text("{}")
    (staging / "wheels").mkdir(exist_ok=True)
    return store.place(model_id, "here", (stored_file(content),))


def stored_file(content: bytes = CONTENT) -> StoredFile:
    return StoredFile("m.gguf", "weights", len(content), hashlib.sha256(content).hexdigest())


def test_what_was_placed_is_found_again_by_what_it_was_pulled_as(store: ModelStore) -> None:
    models = [placed(store, model_id) for model_id in ("a", "hf:o/r/m.gguf", "hf:o/r/M.gguf", "hf:o/r-m.gguf")]
    assert store.models() == sorted(models, key=lambda model: model.id)
    assert [store.find(model.id) for model in models] == models
    assert store.find("hf:o/r/x.gguf") is None
    assert sorted(path.name for path in models[0].folder.iterdir()) == ["m.gguf", "model.json"]
    assert store.partials() == []


def test_placing_a_model_again_replaces_it(store: ModelStore) -> None:
    placed(store, content=b"old")
    assert placed(store, content=b"new").path.read_bytes() == b"new"
    assert len(store.models()) == 1


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        json.dumps({"id": "m", "origin": "", "files": []}),
        json.dumps(
            {"id": "m", "origin": "", "files": [{"name": "../../x", "role": "weights", "size": 1, "sha256": "0"}]}
        ),
        json.dumps(
            {"id": "m", "origin": "", "files": [{"name": "../x", "role": "weights", "size": 1, "sha256": "0" * 64}]}
        ),
        json.dumps(
            {"id": "m", "origin": "", "files": [{"name": "x", "role": "projector", "size": 1, "sha256": "0" * 64}]}
        ),
        json.dumps(
            {
                "id": "m",
                "origin": "",
                "version": 2,
                "files": [{"name": "x", "role": "weights", "size": 1, "sha256": "0" * 64}],
            }
        ),
    ],
)
def test_a_folder_whose_manifest_cannot_be_believed_is_passed_over_and_can_be_removed(
    store: ModelStore, manifest: str
) -> None:
    placed(store, "other")
    (store.folder / "m").mkdir()
    (store.folder / "m/model.json").write_text(manifest)
    assert [model.id for model in store.models()] == ["other"]
    assert store.find("m") is None
    assert store.remove("m") == len(manifest)
    assert not (store.folder / "m").exists()


def test_a_manifest_that_was_copied_from_another_model_is_not_found_as_this_one(store: ModelStore) -> None:
    placed(store, "other")
    (store.folder / "other").rename(store.folder / "m")
    assert store.find("m") is None


def test_removing_takes_what_was_not_pulled_to_its_end_as_well(store: ModelStore) -> None:
    size = placed(store).size
    (store.staging("m") / "m.gguf.part").write_bytes(b"half")
    partial = store.partial("m")
    assert partial is not None
    assert (partial.name, partial.size) == ("m", 4)
    assert store.remove("m") > size + 4
    assert (store.models(), store.partials(), store.remove("m")) == ([], [], 0)


def test_a_model_that_is_in_use_by_another_process_is_busy(store: ModelStore) -> None:
    other = ModelStore(store.folder)
    with store.locked("m"):
        with pytest.raises(ModelBusyError, match="m: another process pulls or removes it"), other.locked("m"):
            pass
        with other.locked("another"):
            pass
    with other.locked("m"):
        pass


def test_an_empty_store_has_nothing(store: ModelStore) -> None:
    assert (store.models(), store.find("m"), store.partial("m"), store.partials()) == ([], None, None, [])


@given(st.text(max_size=200))
def test_every_id_has_a_folder_of_its_own_with_a_name_that_any_system_takes(model_id: str) -> None:
    name = folder_name(model_id)
    assert is_file_name(name)
    assert name == model_id or folder_name(name) == name or name != folder_name(name)
    assert len(name) <= 100


def test_ids_that_read_alike_have_folders_apart() -> None:
    names = {folder_name(model_id) for model_id in ("hf:a/b/c", "hf:a-b/c", "hf:a/b-c", "HF:a/b/c", "hf-a-b-c")}
    assert len({name.lower() for name in names}) == 5


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"FORERUN_MODELS": "/data/models"}, "/data/models"),
        ({"XDG_DATA_HOME": "/data"}, "/data/forerun/models"),
        ({"XDG_DATA_HOME": "data", "HOME": "/home/me"}, "/home/me/.local/share/forerun/models"),
    ],
)
def test_where_the_users_store_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str) -> None:
    for name in ("FORERUN_MODELS", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ModelStore.of_user().folder == Path(folder)


# --- what uses it ---


def test_a_model_that_was_pulled_is_loaded_by_what_it_was_pulled_as(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_MODELS", str(store.folder))
    for name in ("m", "hf:o/r/m.gguf", "https://example.org/m.gguf"):
        with pytest.raises(ModelNotFoundError):
            resolve_model(name)
        assert resolve_model(placed(store, name).id) == store.folder / folder_name(name) / "m.gguf"


def test_a_source_that_was_not_pulled_is_answered_with_the_command_that_pulls_it(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_MODELS", str(store.folder))
    with pytest.raises(ModelNotFoundError, match=r"run `forerun pull hf:o/r/m\.gguf`"):
        resolve_model("hf:o/r/m.gguf")


def test_every_byte_counts_when_a_model_is_verified(store: ModelStore) -> None:
    model, seen = placed(store), list[float]()

    def fault() -> str | None:
        return fault_of(model, model.files[0], lambda _, share: seen.append(share))

    assert fault() is None
    assert seen[-1] == 1.0
    for index in range(len(CONTENT)):
        changed = bytearray(CONTENT)
        changed[index] ^= 1
        model.path.write_bytes(changed)
        assert fault() == "has other bytes than it had"
    model.path.write_bytes(CONTENT + b"x")
    assert fault() == "has 12 bytes, it had 11"
    model.path.unlink()
    assert fault() == "is not there any more"
