"""The program itself: real processes, real models, real signals and pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor

pytestmark = pytest.mark.model

FORERUN = (sys.executable, "-m", "forerun")
SMALL = ("--threads", "1", "--n-ctx", "512")
ENDLESS = ("smollm2", "Count.", "--max-tokens", "400", "--ignore-eos", *SMALL)


def forerun(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FORERUN, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("forerun: ")
    assert all(word in line for word in words), line


def test_run_answers_with_json_and_shares_the_prefix_of_its_prompts() -> None:
    result = forerun("run", "smollm2", "Why is the sky blue?", "Name a colour.", "--json", "--max-tokens", "4", *SMALL)
    assert result.returncode == 0, result.stderr
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first["text"].startswith("The ")
    assert first["usage"]["cached_tokens"] == 0
    assert second["usage"]["cached_tokens"] > 20


def test_the_second_turn_of_a_chat_finds_the_whole_first_turn_cached() -> None:
    result = forerun("chat", "smollm2", "--max-tokens", "12", *SMALL, stdin="My name is Bob.\nWhat is my name?\n")
    assert result.returncode == 0, result.stderr
    first, second = result.stderr.splitlines()
    prompt, output = int(first.split()[0]), int(first.split(", ")[1].split()[0])
    assert f"({prompt + output - 1} cached)" in second


@pytest.mark.parametrize("system", [(), ("--system", "Be brief.")])
def test_a_blank_prompt_is_a_message_like_any_other(system: tuple[str, ...]) -> None:
    """It went past the chat template, and the system message with it."""
    result = forerun("run", "smollm2", " ", "\n", "a", *system, "--json", "--max-tokens", "1", *SMALL)
    blank, line, letter = (json.loads(line)["usage"]["prompt_tokens"] for line in result.stdout.splitlines())
    assert min(blank, line) >= letter - 1 > 5


def test_standard_input_and_a_pipe_work() -> None:
    result = forerun("run", "smollm2", "-", "--max-tokens", "4", *SMALL, stdin="Why is the sky blue?")
    assert (result.returncode, result.stdout[:4]) == (0, "The ")


def broken(kind: str, path: Path, smollm2_path: Path) -> None:
    """Make at `path` what case O1 starts with."""
    if kind == "directory":
        path.mkdir()
    if kind in ("missing", "directory"):
        return
    whole = smollm2_path.stat().st_size
    shares = {"cut at 1%": 0.01, "cut at 50%": 0.5, "cut at 99%": 0.99, "flipped header": 0.1}
    with smollm2_path.open("rb") as file:
        head = file.read(int(whole * shares.get(kind, 0)))
    if kind == "flipped header":
        head = head[:8] + bytes(byte ^ 0xFF for byte in head[8:64]) + head[64:]
    projector = GgufFile({"general.architecture": gguf.text("clip")}, [Tensor("v.x", (8,), 0, bytes(32))])
    if kind == "projector":
        projector.write(path)
    else:
        path.write_bytes({"empty": b"", "text": b"Dear model,\n" * 100}.get(kind, head))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("missing", "no such file"),
        ("directory", "this is a directory"),
        ("empty", "the file is empty"),
        ("text", "not a GGUF file: it begins with the text 'Dear model"),
        ("cut at 1%", "truncated"),
        ("cut at 50%", "truncated"),
        ("cut at 99%", "truncated"),
        ("flipped header", "malformed GGUF header"),
        ("projector", "this is an image or audio projector"),
    ],
)
def test_a_broken_model_file_ends_in_one_line_with_its_path_and_the_kind_of_fault(
    kind: str, fault: str, tmp_path: Path, smollm2_path: Path
) -> None:
    """Case O1."""
    path = tmp_path / "model.gguf"
    broken(kind, path, smollm2_path)
    assert_refused(forerun("run", str(path), "Hello", *SMALL), str(path), fault)


def test_a_server_of_a_broken_model_file_ends_with_the_same_line(tmp_path: Path, smollm2_path: Path) -> None:
    """Case O1."""
    path = tmp_path / "model.gguf"
    broken("cut at 50%", path, smollm2_path)
    ended = forerun("serve", str(path), "--port", "0", *SMALL)
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"forerun: {path}: ")
    assert "truncated" in last
    assert "Traceback" not in ended.stderr


def test_an_unknown_model_name_is_told_with_what_may_be_meant() -> None:
    assert_refused(forerun("run", "smollm", "Hello"), "unknown model 'smollm'", "such as smollm2")


def test_a_draft_that_does_not_fit_is_refused_at_start(
    tiny_foreign_path: Path, tiny_permuted_path: Path, tiny_dense_path: Path, tmp_path: Path
) -> None:
    """Case O2."""
    missing = tmp_path / "missing.gguf"
    for target, draft in (
        ("smollm2", tiny_foreign_path),
        (str(tiny_dense_path), tiny_permuted_path),
        (str(tiny_dense_path), missing),
    ):
        assert_refused(forerun("run", target, "Hello", "--draft", str(draft), *SMALL), str(draft), Path(target).name)


@pytest.mark.parametrize("fixture", ["tiny_swa_path", "tiny_hybrid_path", "tiny_recurrent_path"])
def test_models_whose_memory_cannot_be_cut_draft_for_themselves(fixture: str, request: pytest.FixtureRequest) -> None:
    path = str(request.getfixturevalue(fixture))
    options = ["--draft", path, "--speculation", "4", "--max-tokens", "16", "--ignore-eos"]
    done = forerun("run", path, "Hello there", "--raw", *options, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "drafted tokens accepted" in done.stderr


def test_a_draft_model_drafts(tiny_dense_path: Path, tiny_medium_draft_path: Path) -> None:
    arguments: list[Any] = ["run", str(tiny_dense_path), "Hello there", "--raw", "--max-tokens", "32", "--ignore-eos"]
    plain = forerun(*arguments, *SMALL)
    drafted = forerun(*arguments, "--draft", str(tiny_medium_draft_path), "--speculation", "4", *SMALL)
    assert (plain.returncode, drafted.returncode) == (0, 0), drafted.stderr
    assert "drafted tokens accepted" in drafted.stderr
    assert "drafts accepted" not in plain.stderr


def test_ctrl_c_ends_quietly_with_130() -> None:
    with subprocess.Popen(
        [*FORERUN, "run", *ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        process.stdout.read()
        assert process.wait(20) == 130
        assert process.stderr.read() == ""
    assert time.monotonic() - started < 5


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    with subprocess.Popen(
        [*FORERUN, "run", *ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == ""


@pytest.mark.skipif(os.name != "posix", reason="redirections of a POSIX shell")
@pytest.mark.parametrize(
    ("command", "redirection", "code", "said"),
    [
        ("run smollm2 Hello", ">&-", 0, "2 output tokens"),
        ("run smollm2 -", "<&-", 2, "forerun: prompt: is empty"),
        ("chat smollm2", "<&-", 0, ""),
        ("run smollm2 Hello", ">/dev/full", 2, "forerun: [Errno 28] No space left on device"),
    ],
)
def test_streams_that_are_closed_or_full_end_in_no_traceback(
    command: str, redirection: str, code: int, said: str
) -> None:
    arguments = [*FORERUN, *command.split(), "--max-tokens", "2", *SMALL]
    result = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *arguments],
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, said in result.stderr, len(result.stderr.splitlines())) == (code, True, bool(said))


def test_an_engine_that_nobody_closed_does_not_disturb_the_end_of_the_program() -> None:
    script = """
from forerun import Engine, SamplingParams
engine = Engine.load("smollm2", n_ctx=512, n_threads=1)
stream = engine.stream("Once upon", SamplingParams(max_tokens=400, ignore_eos=True))
print(bool(next(stream).token_ids))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


def test_importing_forerun_and_its_help_do_not_load_llama_cpp() -> None:
    script = """
import sys
import forerun, forerun.engine.engine, forerun.engine.async_engine, forerun.cli.run, forerun.cli.chat
sys.exit("llama_cpp" in sys.modules or "forerun.native" in sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": "src"}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False).returncode == 0
