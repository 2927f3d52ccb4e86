"""KV is used again only under everything it was computed with; how fast it was computed does not matter."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest

from forerun.compose import model_identity, preflight
from forerun.engine_config import EngineConfig
from forerun.errors import ModelLoadError
from forerun.models.catalog_format import Method
from forerun.models.file_digest import file_digest
from forerun.models.model_identity import ModelIdentity
from forerun.models.package import EMBEDDED, Bundle

IDENTITY = ModelIdentity(
    bundle=Bundle("package_ab"),
    target_name="a.gguf",
    build="llama-cpp-python 0.3.36",
    settings={"type_k": 1, "type_v": 1, "rope_freq_base": 0.0, "n_ctx": 8192, "n_threads": 2},
)


def changed(**settings: Any) -> ModelIdentity:
    return dataclasses.replace(IDENTITY, settings={**IDENTITY.settings, **settings})


def test_a_key_is_32_hexadecimal_digits() -> None:
    assert re.fullmatch("[0-9a-f]{32}", IDENTITY.key)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(IDENTITY, bundle=Bundle("package_ba")),
        dataclasses.replace(IDENTITY, bundle=Bundle("package_ab", Method.DRAFT, "package_ab")),
        dataclasses.replace(IDENTITY, bundle=Bundle("package_ab", Method.MTP, EMBEDDED)),
        dataclasses.replace(IDENTITY, build="llama-cpp-python 0.3.37"),
        dataclasses.replace(IDENTITY, beyond_training=(True,)),
        changed(type_k=8),
        changed(rope_freq_base=10000.0),
        changed(something_new=1),
    ],
)
def test_what_changes_kv_changes_the_key(other: ModelIdentity) -> None:
    assert other.key != IDENTITY.key


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(IDENTITY, target_name="b.gguf"),
        changed(n_ctx=512),
        changed(n_threads=8),
        changed(n_ubatch=1),
    ],
)
def test_names_sizes_and_threads_do_not(other: ModelIdentity) -> None:
    assert other.key == IDENTITY.key


def test_a_file_is_read_once_for_each_version_of_it(tmp_path: Path) -> None:
    file, remembered = tmp_path / "model.gguf", tmp_path / "digests.json"
    file.write_bytes(b"weights" * 300_000)
    shares: list[float] = []
    first = file_digest(file, lambda _name, share: shares.append(share), remembered)
    assert len(first) == 64
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert remembered.stat().st_mode & 0o777 == 0o600

    reads: list[float] = []
    assert file_digest(file, lambda _name, share: reads.append(share), remembered) == first
    assert reads == []
    times = file.stat()
    file.write_bytes(b"weighty" * 300_000)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_digest(file, None, remembered) != first
    for nonsense in ("[]", "{", '{"a": 1}'):
        remembered.write_text(nonsense)
        assert file_digest(file, None, remembered) == file_digest(file, None, tmp_path / "other.json")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"gone\.gguf: the file cannot be read: No such file"):
        file_digest(tmp_path / "gone.gguf")


def test_a_file_that_changes_while_it_is_read_has_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")

    def change(_name: str, _share: float) -> None:
        file.write_bytes(b"more weights")

    with pytest.raises(ModelLoadError, match="changed while it was read"):
        file_digest(file, change, tmp_path / "digests.json")


@pytest.mark.model
def test_an_engine_s_identity_depends_on_what_it_loads(
    tiny_dense_path: Path, tiny_medium_draft_path: Path, tiny_mtp_path: Path
) -> None:
    def key(model: Path, **options: Any) -> str:
        config = EngineConfig(model=str(model), **{"n_ctx": 256, **options})
        return model_identity(config, preflight(config)).key

    plain = key(tiny_dense_path)
    assert key(tiny_dense_path, n_ctx=512, n_threads=1, max_num_seqs=2) == plain
    keys = [
        plain,
        key(tiny_medium_draft_path),
        key(tiny_dense_path, draft=str(tiny_medium_draft_path)),
        key(tiny_mtp_path, mtp=False),
        key(tiny_mtp_path, mtp=True),
        key(tiny_dense_path, n_ctx=2**17),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.model
def test_the_library_s_build_and_the_files_are_told(tiny_dense_path: Path) -> None:
    config = EngineConfig(model=str(tiny_dense_path), n_ctx=256)
    description = model_identity(config, preflight(config)).description()
    assert description["target"] == tiny_dense_path.name
    assert description["build"].startswith("llama-cpp-python 0.")
    assert "CPU" in description["build"]
