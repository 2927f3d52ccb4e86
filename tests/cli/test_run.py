"""`forerun run` on the fake model: what goes where, and how it ends."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import pytest
from typer.testing import CliRunner

import forerun as package
from forerun.cli import app
from forerun.cli.endings import keep_interrupts
from forerun.core.request import SamplingParams
from tests.cli.conftest import FakeBuild, Forerun
from tests.engine.support import BreakingRunner
from tests.engine.test_engine import oracle

TEN = ("--max-tokens", "10", "--ignore-eos")
PARAMS = SamplingParams(max_tokens=10, ignore_eos=True)


def lines_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_the_answer_goes_to_stdout_and_figures_to_stderr(forerun: Forerun) -> None:
    result = forerun("run", "fake", "ab", *TEN)
    assert result.exit_code == 0
    assert result.stdout == oracle("ab$", PARAMS) + "\n"
    (figures,) = result.stderr.splitlines()
    assert figures.startswith("3 prompt tokens (0 cached), 10 output tokens, ")
    assert "tok/s, TTFT " in figures


def test_raw_leaves_the_template_out(forerun: Forerun) -> None:
    assert forerun("run", "fake", "ab", "--raw", *TEN).stdout == oracle("ab", PARAMS) + "\n"


def test_a_system_message_comes_before_the_prompt(forerun: Forerun) -> None:
    assert forerun("run", "fake", "ab", "--system", "b", *TEN).stdout == oracle("b$ab$", PARAMS) + "\n"


def test_several_prompts_are_answered_in_order(forerun: Forerun) -> None:
    result = forerun("run", "fake", "ab", "b", "abba", *TEN)
    assert result.stdout.splitlines() == [oracle(text, PARAMS) for text in ("ab$", "b$", "abba$")]
    assert result.stderr.count("[prompt ") == 3


def test_json_prints_one_object_a_prompt_in_order(forerun: Forerun) -> None:
    result = forerun("run", "fake", "ab", "b", "--json", "--logprobs", "1", *TEN)
    first, second = lines_of(result.stdout)
    assert [first["index"], second["index"]] == [0, 1]
    assert first["text"] == oracle("ab$", PARAMS)
    assert second["text"] == oracle("b$", PARAMS)
    assert first["finish_reason"] == "length"
    assert len(first["token_ids"]) == len(first["logprobs"]) == 10
    assert first["usage"]["output_tokens"] == 10
    assert set(first) == {"index", "text", "finish_reason", "token_ids", "origins", "logprobs", "usage"}
    assert first["origins"] == [["target", 10]]


def test_a_dash_reads_standard_input(forerun: Forerun) -> None:
    assert forerun("run", "fake", "-", *TEN, stdin="ab").stdout == oracle("ab$", PARAMS) + "\n"
    result = forerun("run", "fake", "b", "-", *TEN, stdin="ab")
    assert result.stdout.splitlines() == [oracle("b$", PARAMS), oracle("ab$", PARAMS)]


def test_standard_input_must_be_text_and_is_read_once() -> None:
    result = CliRunner().invoke(app, ["run", "fake", "-"], input=b"ab\xff")
    assert (result.exit_code, result.stderr) == (2, "forerun: prompt: standard input is not UTF-8 at byte 2\n")
    assert CliRunner().invoke(app, ["run", "fake", "-", "-"], input="ab").exit_code == 2


def test_a_prompt_that_fails_in_a_batch_says_so_and_the_others_are_printed(forerun: Forerun) -> None:
    result = forerun("run", "fake", "ab", "", "b" * 300, "b", "--json", *TEN)
    assert result.exit_code == 1
    ab, empty, long, b = lines_of(result.stdout)
    assert empty["error"] == {"type": "InvalidRequestError", "message": "prompt: is empty; give at least one token"}
    assert "301" in long["error"]["message"]
    assert "256" in long["error"]["message"]
    assert (ab["text"], b["text"]) == (oracle("ab$", PARAMS), oracle("b$", PARAMS))
    result = forerun("run", "fake", "ab", "", *TEN)
    assert result.exit_code == 1
    assert result.stdout == oracle("ab$", PARAMS) + "\n"
    assert "forerun: prompt: is empty" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["", "--raw"], "prompt: is empty"),
        (["b" * 300], "301 tokens, but the context holds 256"),
        (["ab", "--top-p", "1.5"], "top_p: must lie between 0 and 1, got 1.5"),
        (["ab", "--temperature", "-1"], "temperature: must lie between"),
        (["ab", "--max-tokens", "0"], "max_tokens: must lie between"),
        (["ab", "--seed", "-1"], "seed: "),
        (["ab", "--stop", ""], "stop: a stop string is empty"),
        (["ab", "--logit-bias", "many"], "logit_bias: TOKEN=BIAS"),
        (["ab", "--adapter", "file.gguf"], "adapter: NAME=FILE"),
        (["ab", "--use-adapter", "sql=much"], "adapters: NAME or NAME=SCALE"),
        (["ab", "--use-adapter", "sql=0"], "adapters: the scale of 'sql' is 0"),
        (["ab", "--use-adapter", "sql"], "adapters: 'sql' is not known: this engine was loaded without any"),
        (["ab", "--logit-bias", "77=1"], "logit_bias: token id 77 is outside the vocabulary of 5 tokens"),
        (["ab", "--n-ctx", "0"], "n_ctx: must lie between 1 and"),
        (["ab", "--threads", "0"], "n_threads: must lie between 1 and 1024, got 0"),
        (["ab", "--speculation", "65"], "speculation: must lie between 0 and 64, got 65"),
    ],
)
def test_what_cannot_be_done_ends_in_one_clear_line_and_exit_code_2(
    forerun: Forerun, arguments: list[str], words: str
) -> None:
    result = forerun("run", "fake", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("forerun: ")
    assert words in line


@pytest.mark.parametrize(
    "arguments",
    [[], ["ab", "--temperature", "hot"], ["ab", "--speculation", "some"], ["ab", "--raw", "--system", "b"]],
    ids=["no prompt", "no number", "neither off nor number", "raw with system"],
)
def test_wrong_usage_exits_with_2(forerun: Forerun, arguments: list[str]) -> None:
    result = forerun("run", "fake", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_options_reach_the_engine(forerun: Forerun, fake_build: FakeBuild) -> None:
    forerun("run", "big.gguf", "ab", "--draft", "small.gguf", "--speculation", "off", "--threads", "3", *TEN)
    forerun("run", "big.gguf", "ab", "--speculation", "3", "--n-ctx", "128", "--n-gpu-layers", "0", *TEN)
    first, second = fake_build.configs
    assert (first.model, first.draft, first.speculation, first.n_threads) == ("big.gguf", "small.gguf", 0, 3)
    assert (second.speculation, second.n_ctx, second.n_gpu_layers) == (3, 128, 0)


def test_a_dying_engine_ends_in_one_line_too(forerun: Forerun, fake_build: FakeBuild) -> None:
    fake_build.runner = BreakingRunner(256, breaks_at=2)
    result = forerun("run", "fake", "ab", *TEN)
    assert result.exit_code == 2
    assert "forerun: the engine thread died: ZeroDivisionError: a fault nobody foresaw" in result.stderr
    assert "Traceback" not in result.stderr


def test_version_and_help() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"forerun {package.__version__}\n"
    for command in ([], ["run"], ["chat"]):
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0
        assert "smollm2" in result.stdout or not command


@pytest.mark.parametrize("command", ["run", "chat"])
def test_flags_are_shown_without_a_value(command: str) -> None:
    lines = CliRunner().invoke(app, [command, "--help"]).output.splitlines()
    assert [line for line in lines if "bool" in line and "--help" not in line] == []


def test_ctrl_c_that_python_drops_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Callback:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def interrupted_where_nothing_can_be_raised() -> None:
        Callback()
        time.sleep(10)

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back afterwards
    keep_interrupts()
    with pytest.raises(KeyboardInterrupt):
        interrupted_where_nothing_can_be_raised()
