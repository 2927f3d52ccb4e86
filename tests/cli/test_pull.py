"""`forerun pull` and `forerun models rm | verify`: what they print, and how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.models.store import ModelStore, folder_name
from tests.cli.conftest import Forerun
from tests.fetch.conftest import gguf, sha256
from tests.support.file_server import Conduct, FileServer, running_file_server

CONTENT = gguf()


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path / "models"))
    return ModelStore(tmp_path / "models")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with running_file_server() as running:
        running.files["/m.gguf"] = CONTENT
        yield running


def test_where_a_model_lies_is_printed_and_the_rest_goes_to_standard_error(
    forerun: Forerun, server: FileServer, store: ModelStore
) -> None:
    result = forerun("pull", server.url("/m.gguf"), "--sha256", sha256(CONTENT))
    assert result.exit_code == 0
    (model,) = store.models()
    assert result.stdout == f"{model.path}\n"
    assert result.stderr.splitlines() == [f"{model.id}: m.gguf", f"{model.id}: pulled, 0.1 MiB"]


def test_what_is_here_is_not_fetched_again(forerun: Forerun, server: FileServer) -> None:
    first = forerun("pull", server.url("/m.gguf"))
    again = forerun("pull", server.url("/m.gguf"))
    assert again.stdout == first.stdout
    assert "already here" in again.stderr
    assert len(server.asked) == 1


def test_an_address_without_encryption_or_checksum_is_warned_of(forerun: Forerun, server: FileServer) -> None:
    warned = forerun("pull", server.url("/m.gguf"))
    assert "without encryption, anybody on the way can change it: give --sha256" in warned.stderr


def test_one_model_of_several_that_fails_makes_the_exit_code_2_and_the_others_come(
    forerun: Forerun, server: FileServer, store: ModelStore
) -> None:
    result = forerun("pull", server.url("/gone.gguf"), server.url("/m.gguf"))
    assert result.exit_code == 2
    assert [model.path.name for model in store.models()] == ["m.gguf"]
    assert result.stdout.count("\n") == 1
    assert "forerun: http://127.0.0.1" in result.stderr
    assert "there is no such file" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("unknown",), "unknown model 'unknown': `forerun models list`"),
        (("hf:broken",), "names no source of a model"),
        (("https://a/m.gguf", "https://a/n.gguf", "--sha256", "0" * 64), "sha256: is of one file, 2 models are named"),
        (("https://a/m.gguf", "--sha256", "beef"), "64 hexadecimal digits"),
        (("smollm2", "--sha256", "0" * 64), "the catalog says it already"),
    ],
)
def test_what_cannot_be_is_one_line_and_2(forerun: Forerun, arguments: tuple[str, ...], told: str) -> None:
    result = forerun("pull", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_wrong_checksum_ends_with_2_and_leaves_no_model(
    forerun: Forerun, server: FileServer, store: ModelStore
) -> None:
    result = forerun("pull", server.url("/m.gguf"), "--sha256", "0" * 64)
    assert result.exit_code == 2
    assert f"its sha256 is {sha256(CONTENT)}, {'0' * 64} is expected" in result.stderr
    assert store.models() == []


def test_ctrl_c_ends_a_pull_that_waits_for_bytes_and_keeps_what_came(server: FileServer, store: ModelStore) -> None:
    server.conduct["/m.gguf"] = [Conduct(stall_after=70_000)]
    command = [sys.executable, "-m", "forerun", "pull", server.url("/m.gguf"), "--sha256", sha256(CONTENT)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stalled.wait(60)
    part = store.folder / ".partial" / folder_name(server.url("/m.gguf")) / "m.gguf.part"
    while not (part.exists() and part.stat().st_size):  # the test's own timeout ends this
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines()[-1] == "interrupted: what has come stays, and the same pull goes on from there"
    assert 0 < part.stat().st_size <= 70_000
    assert store.models() == []


def test_removing_asks_first_and_deletes_what_was_named(
    forerun: Forerun, server: FileServer, store: ModelStore
) -> None:
    forerun("pull", server.url("/m.gguf"))
    name = server.url("/m.gguf")
    refused = forerun("models", "rm", name, stdin="n\n")
    assert refused.exit_code == 1
    assert len(store.models()) == 1
    assert forerun("models", "rm", name, "--yes").stdout == f"deleted: {name}: 0.1 MiB\n"
    assert store.models() == []
    assert "there is nothing at all" in forerun("models", "rm", name, "--yes").stderr


def test_removing_one_that_is_not_here_deletes_none_of_the_others(
    forerun: Forerun, server: FileServer, store: ModelStore
) -> None:
    forerun("pull", server.url("/m.gguf"))
    result = forerun("models", "rm", server.url("/m.gguf"), "gone", "--yes")
    assert result.exit_code == 2
    assert len(store.models()) == 1


def test_what_was_not_pulled_to_its_end_can_be_removed(forerun: Forerun, server: FileServer, store: ModelStore) -> None:
    server.conduct["/m.gguf"] = [Conduct(cut_after=50_000), Conduct(status=404)]
    server.headers["/m.gguf"] = {"ETag": '"one"'}
    forerun("pull", server.url("/m.gguf"))
    assert len(store.partials()) == 1
    assert forerun("models", "rm", server.url("/m.gguf"), "--yes").exit_code == 0
    assert store.partials() == []


def test_verifying_says_what_is_damaged_and_how_to_mend_it(
    forerun: Forerun, server: FileServer, store: ModelStore
) -> None:
    assert "no model was pulled" in forerun("models", "verify").stdout
    name = server.url("/m.gguf")
    forerun("pull", name)
    (model,) = store.models()
    well = forerun("models", "verify")
    assert (well.exit_code, well.stdout) == (0, f"ok       {name}  m.gguf\n")
    model.path.write_bytes(CONTENT[:-1] + b"!")
    damaged = forerun("models", "verify", name)
    assert (damaged.exit_code, damaged.stdout) == (1, f"damaged  {name}  m.gguf has other bytes than it had\n")
    assert f"forerun models rm --yes {name} && forerun pull {name}" in damaged.stderr
    assert forerun("models", "verify", "gone").exit_code == 2
