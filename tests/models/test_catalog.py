"""The catalog: what is shipped, what a user adds, and what is refused, with the path of the field."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from forerun.errors import CatalogError
from forerun.models.catalog import MAX_CATALOG_BYTES, load_catalog, parse_catalog
from forerun.models.catalog_format import FileRole, ListedModel, Method
from tools.catalog_schema import SCHEMA, catalog_schema

SHA = "0123456789abcdef" * 4
FILE = f'{{ file = "m.gguf", sha256 = "{SHA}", size = 7 }}'
DRAFT = f'{{ repository = "hf:them/small", file = "s.gguf", sha256 = "{SHA}", size = 3 }}'


def document(extra: str = "", **replaced: str) -> str:
    """A catalog of one model, with some of its fields replaced (or taken out, by ""), and others added."""
    fields = {
        "id": '"mine"',
        "name": '"Mine"',
        "repository": '"hf:them/theirs"',
        "files": f"[{FILE}]",
        "context_length": "4096",
        "licence": '"MIT"',
    }
    lines = [f"{name} = {value}" for name, value in (fields | replaced).items() if value]
    return "\n".join(["version = 1", "[[models]]", *lines, extra])


def parsed(text: str, name: str = "catalog.toml") -> ListedModel:
    return parse_catalog(text.encode(), name).models[0]


@pytest.fixture
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FORERUN_CATALOG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "forerun").mkdir()
    return tmp_path / "forerun"


def test_a_model_knows_all_files_that_loading_it_takes() -> None:
    projector = f'projector = {{ file = "p.gguf", sha256 = "{SHA}", size = 2 }}'
    model = parsed(document(f'{projector}\nspeculative_decoding = {{ method = "draft", draft = {DRAFT} }}'))
    assert [(one.source, one.role, one.size) for one in model.all_files] == [
        ("hf:them/theirs/m.gguf", FileRole.WEIGHTS, 7),
        ("hf:them/theirs/p.gguf", FileRole.PROJECTOR, 2),
        ("hf:them/small/s.gguf", FileRole.WEIGHTS, 3),
    ]
    assert (model.method, model.size) == (Method.DRAFT, 12)


def test_the_parts_of_a_split_model_come_in_order() -> None:
    names = [f"big-0000{part}-of-00002.gguf" for part in (1, 2)]
    listed = ", ".join(FILE.replace("m.gguf", name) for name in names)
    weights = parsed(document(files=f"[{listed}]")).weights
    assert [(one.file, one.role) for one in weights] == [
        (names[0], FileRole.WEIGHTS),
        (names[1], FileRole.SPLIT_PART),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (document("colour = 1"), "models[0].colour: unknown field"),
        (document(files=f'[{FILE[:-2]}, md5 = "x" }}]'), "models[0].files[0].md5: unknown field"),
        (document(name=""), "models[0].name: is missing"),
        (document(id='"No Spaces"'), "models[0].id: expected `str` matching regex"),
        (document(id='"x.gguf"'), "models[0].id: ends as a file's name does"),
        (document(context_length="0"), "models[0].context_length: expected `int` >= 1"),
        (document(files="[]"), "models[0].files: expected `array` of length >= 1"),
        (document(files=f"[{FILE.replace(SHA, 'abc')}]"), "models[0].files[0].sha256: expected `str` matching"),
        (document(files=f"[{FILE.replace('m.gguf', '../m.gguf')}]"), "models[0].files[0].file: must be a relative"),
        (document(files=f"[{FILE.replace('m.gguf', '/etc/m.gguf')}]"), "models[0].files[0].file: must be a relative"),
        (
            document(files=f"[{FILE}, {FILE}]"),
            "models[0].files: one file, or all parts of a split one in order; 'm.gguf' is no part",
        ),
        (
            document(files=f"[{FILE.replace('m.gguf', 'm-00001-of-00002.gguf')}]"),
            "models[0].files: one file, or all parts of a split one in order; 'm-00001-of-00002.gguf' is part 1 of 2",
        ),
        (document(repository='"ftp://x"'), "models[0].repository: expected `str` matching regex"),
        (document('revision = "main"'), "models[0].revision: of a repository on Hugging Face it is a commit"),
        (document('revision = "1"', repository='"https://x/y"'), "models[0].revision: an address has none"),
        (document(f"projector = {FILE}"), "models[0].projector.file: the same file as one of the weights"),
        (
            document('speculative_decoding = { method = "eagle" }'),
            "models[0].speculative_decoding.method: must be one of draft, mtp, ngram, got 'eagle'",
        ),
        (
            document('speculative_decoding = { method = "draft" }'),
            "models[0].speculative_decoding.draft: method 'draft' needs a draft model",
        ),
        (
            document('speculative_decoding = { method = "draft", draft = "embedded" }'),
            "models[0].speculative_decoding.draft: method 'draft' needs a draft model",
        ),
        (
            document(f'speculative_decoding = {{ method = "mtp", draft = {DRAFT} }}'),
            "models[0].speculative_decoding.draft: an MTP head is in the model's own file",
        ),
        (
            document('speculative_decoding = { method = "ngram", draft = "embedded" }'),
            "models[0].speculative_decoding.draft: n-grams are found in the text",
        ),
        (
            document('speculative_decoding = { method = "mtp", draft = "elsewhere" }'),
            "models[0].speculative_decoding.draft: must be 'embedded' or a table",
        ),
        (document() + document().removeprefix("version = 1"), "models[1].id: 'mine' is the id of models[0] already"),
        ("version = 2", "version: must be 1, got 2"),
        ("models = []", "version: is missing"),
        ("version = ", "cannot be read: Invalid value"),
    ],
)
def test_what_is_wrong_is_told_with_the_path_of_its_field(text: str, told: str) -> None:
    with pytest.raises(CatalogError) as caught:
        parsed(text)
    assert str(caught.value).startswith(f"catalog.toml: {told}")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"a = " + b"[" * 100_000, b"", b"[]", b'"x"'])
@pytest.mark.parametrize("name", ["catalog.toml", "catalog.json"])
def test_no_content_raises_anything_but_a_catalog_error(content: bytes, name: str) -> None:
    with pytest.raises(CatalogError, match=rf"^{name}: "):
        parse_catalog(content, name)


def test_json_says_the_same() -> None:
    text = json.dumps({"$schema": "catalog.schema.json", **tomllib.loads(document())})
    assert parsed(text, "catalog.json") == parsed(document())


def test_a_user_s_models_stand_beside_the_shipped_ones_and_hide_those_of_the_same_id(config_folder: Path) -> None:
    own = config_folder / "catalog.toml"
    own.write_text(document(id='"smollm2"'))
    (config_folder / "catalog.json").write_text(json.dumps(tomllib.loads(document())))
    catalog = load_catalog()
    assert {model.id: catalog.sources[model.id] for model in catalog if model.name == "Mine"} == {
        "smollm2": str(own),
        "mine": str(config_folder / "catalog.json"),
    }
    assert catalog.get("qwen2.5-coder-1.5b") is not None
    assert catalog.get("no such") is None


def test_a_catalog_can_be_named(config_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config_folder / "catalog.toml").write_text("nonsense")
    named = config_folder / "mine.toml"
    monkeypatch.setenv("FORERUN_CATALOG", str(named))
    with pytest.raises(CatalogError, match=r"mine\.toml: cannot be read: No such file"):
        load_catalog()
    named.write_text(document())
    assert load_catalog().sources["mine"] == str(named)


def test_a_catalog_that_is_too_long_is_not_read(config_folder: Path) -> None:
    (config_folder / "catalog.toml").write_bytes(b"#" * (MAX_CATALOG_BYTES + 1))
    with pytest.raises(CatalogError, match="longer than"):
        load_catalog()


def test_the_published_schema_is_that_of_the_types_and_takes_what_is_shipped() -> None:
    assert SCHEMA.read_text() == catalog_schema(), "run python -m tools.catalog_schema"
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    shipped = tomllib.loads(files("forerun.models").joinpath("catalog.toml").read_text())
    validator.validate(shipped)
    shipped["models"][0]["colour"] = "red"
    assert not validator.is_valid(shipped)
