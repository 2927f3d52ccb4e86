"""Case O1 (ggml-org/llama.cpp#24884): what would abort the process that loads it is told by one line instead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forerun.errors import ModelFileError, ModelLoadError, ModelNotFoundError
from forerun.models import probe
from forerun.models.native_child import NO_LIBRARY
from forerun.models.probe import probe_model
from forerun.models.probe_cache import ProbeCache
from tests.conftest import MakeTinyModel
from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile
from tests.support.tiny_models import TinyModel, assemble

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def cache_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "forerun" / "probed.json"


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(subprocess, "run", refuse)


def damaged(model: GgufFile, damage: str) -> GgufFile:
    """One nasty change to a good model."""
    entries, tensors = model.entries, model.tensors
    if damage == "tensor shape":
        tensors[1].shape = (32,)
    elif damage == "tensor missing":
        tensors.pop()
    elif damage == "tensor type":
        tensors[3].ggml_type = 200
    elif damage == "vocabulary size":
        tokens = gguf.strings_of(entries["tokenizer.ggml.tokens"])
        entries["tokenizer.ggml.tokens"] = gguf.string_array(tokens[:1_000])
    else:
        key, value = {
            "no heads": ("llama.attention.head_count", gguf.u32(0)),
            "odd heads": ("llama.attention.head_count_kv", gguf.u32(3)),
            "huge depth": ("llama.block_count", gguf.u32(2**31)),
            "too deep": ("llama.block_count", gguf.u32(3)),
            "experts": ("llama.expert_count", gguf.u32(2**31)),
            "text for a number": ("llama.rope.freq_base", gguf.text("tiny")),
            "huge rope": ("llama.rope.dimension_count", gguf.u32(2**31)),
            "unknown tokenizer": ("tokenizer.ggml.pre", gguf.text("klingon")),
            "short types": ("tokenizer.ggml.token_type", gguf.i32_array([1, 2, 3])),
        }[damage]
        entries[key] = value
    return model


NASTY = {
    "no heads": "has wrong shape",
    "odd heads": "has wrong shape",
    "huge depth": "died of it (SIGABRT): llama-model.cpp",
    "too deep": "'blk.2.attn_norm.weight' not found",
    "experts": "died of it (SIGABRT): llama-model.cpp",
    "text for a number": "has wrong type str but expected type f32",
    "huge rope": "invalid n_rot",
    "unknown tokenizer": "unknown pre-tokenizer type: 'klingon'",
    "short types": "Index out of array bounds",
    "tensor shape": "tensor 'blk.0.attn_norm.weight' has offset",
    "tensor missing": "'blk.1.ffn_down.weight' not found",
    "tensor type": "has invalid ggml type 200",
    "vocabulary size": "has wrong shape; expected 64, 1000, got 64, 4096",
}


@pytest.mark.parametrize("damage", NASTY)
def test_a_model_that_would_break_the_native_library_is_refused_with_its_reason(
    tmp_path: Path, smollm2_path: Path, damage: str
) -> None:
    path = tmp_path / "nasty.gguf"
    damaged(assemble(TinyModel(), smollm2_path), damage).write(path)
    with pytest.raises(ModelFileError) as caught:
        probe_model(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: the native library ")
    assert NASTY[damage] in message
    assert "\n" not in message


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2", "mamba"])
def test_every_kind_of_good_model_passes(tiny_model: MakeTinyModel, kind: str) -> None:
    recipes = [TinyModel(), TinyModel("gemma3", layers=6), TinyModel("lfm2", layers=4), TinyModel("mamba")]
    recipe = next(recipe for recipe in recipes if recipe.kind == kind)
    assert probe_model(tiny_model(recipe)).architecture == kind


def test_a_probed_model_is_not_probed_again_by_any_process(
    tiny_dense_path: Path, cache_file: Path, request: pytest.FixtureRequest
) -> None:
    probe_model(tiny_dense_path)
    assert cache_file.stat().st_mode & 0o777 == 0o600
    request.getfixturevalue("no_child")
    assert probe_model(tiny_dense_path).architecture == "llama"


def test_a_changed_file_is_probed_again(tmp_path: Path, tiny_dense_path: Path, cache_file: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_dense_path.read_bytes())
    probe_model(path)
    before = cache_file.read_text()
    os.utime(path, ns=(1, 1))
    probe_model(path)
    assert cache_file.read_text() != before


def test_a_file_overwritten_in_place_is_probed_again_though_its_times_are_set_back(
    tmp_path: Path, tiny_dense_path: Path, cache_file: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_dense_path.read_bytes())
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    probe_model(path)
    before = cache_file.read_text()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=times)
    probe_model(path)
    assert cache_file.read_text() != before


def test_a_refused_model_is_not_remembered(tmp_path: Path, smollm2_path: Path, cache_file: Path) -> None:
    path = tmp_path / "nasty.gguf"
    damaged(assemble(TinyModel(), smollm2_path), "no heads").write(path)
    for _ in range(2):
        with pytest.raises(ModelFileError):
            probe_model(path)
    assert not cache_file.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b'{"a": 1}', b"[" * 60_000, b"\xff", b'["x"]' * 99_999])
def test_a_corrupt_cache_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    cache = ProbeCache(tmp_path / "probed.json")
    (tmp_path / "probed.json").write_bytes(content)
    assert not cache.holds("key")
    cache.add("key")
    assert cache.holds("key")


def test_the_cache_forgets_the_oldest(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path / "probed.json")
    for number in range(300):
        cache.add(str(number))
    assert [cache.holds(str(number)) for number in (0, 43, 44, 299)] == [False, False, True, True]


def test_a_cache_that_cannot_be_written_or_has_no_place_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for cache in (ProbeCache(tmp_path / "file" / "probed.json"), ProbeCache(None)):
        cache.add("key")
        assert not cache.holds("key")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert ProbeCache.of_user().file == Path("/home/someone/.cache/forerun/probed.json")


def test_a_missing_file_is_told_without_starting_a_process(tmp_path: Path, no_child: None) -> None:  # noqa: ARG001
    with pytest.raises(ModelNotFoundError, match="no such file"):
        probe_model(tmp_path / "absent.gguf")


def test_a_name_full_of_shell_characters_is_only_a_name(
    tmp_path: Path, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "-m $(touch injected); `id` 'x' \"y\" é.gguf"
    (tmp_path / name).symlink_to(tiny_dense_path)
    monkeypatch.chdir(tmp_path)
    assert probe_model(Path(name)).architecture == "llama"
    assert not (tmp_path / "injected").exists()


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    (folder / "child.py").write_text(code)
    monkeypatch.setattr(probe, "_CHILD", folder / "child.py")


def test_a_library_that_never_answers_is_given_up(
    tmp_path: Path, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, tmp_path, "import time; time.sleep(60)")
    started = time.monotonic()
    with pytest.raises(ModelFileError, match=r"did not read the file's metadata within 0\.2 s"):
        probe_model(tiny_dense_path, timeout=0.2)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os.kill(os.getpid(), 11)", r"died of it \(SIGSEGV\): it gave no reason"),
        ("import os; os.kill(os.getpid(), 8)", r"died of it \(SIGFPE\)"),
        ("import os; os.kill(os.getpid(), 40)", r"died of it \(signal 40\)"),
        ("raise SystemExit(3)", "refused it: it gave no reason"),
        ("import sys; assert not sys.stdin.read(); raise SystemExit(3)", "refused it: it gave no reason"),
    ],
)
def test_every_way_to_die_is_a_model_error(
    tmp_path: Path, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str
) -> None:
    stand_in(monkeypatch, tmp_path, code)
    with pytest.raises(ModelFileError, match=told):
        probe_model(tiny_dense_path)


def test_a_machine_that_refuses_a_process_is_told_as_a_model_error(
    tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(ModelLoadError, match=r"could not be checked: .*Resource temporarily unavailable"):
        probe_model(tiny_dense_path)


def test_a_missing_library_is_not_blamed_on_the_model(
    tmp_path: Path, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, tmp_path, "import sys; print('No module named x', file=sys.stderr); raise SystemExit(5)")
    with pytest.raises(ModelLoadError, match="llama-cpp-python cannot be imported: No module named x"):
        probe_model(tiny_dense_path)


def test_the_child_says_when_the_library_is_missing(tiny_dense_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(probe._CHILD), str(tiny_dense_path)]  # -S: no site-packages
    ended = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ended.returncode == NO_LIBRARY
    assert ended.stderr.strip() == "No module named 'llama_cpp'"
