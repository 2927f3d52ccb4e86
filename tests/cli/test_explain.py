"""`--explain-tokens`: which text came from which drafter, whatever the tokens cut through."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import pytest
from rich.console import Console

from forerun.cli.explain import Explained, TextOrigins
from forerun.cli.figures import figures
from forerun.core.origins import Origins
from forerun.core.request import FinishReason, SamplingParams, Usage
from forerun.engine.output import Output
from tests.cli.conftest import Forerun
from tests.engine.test_engine import oracle

PIECES = [b"The ", b"fox", b"\xc3", b"\xa9", b" EN", b"D", b" jumps\n", b"over"]
PLAIN = Console(force_terminal=False)
COLOURED = Console(force_terminal=True, color_system="standard", no_color=False)


def bytes_of(tokens: Iterable[int]) -> bytes:
    return b"".join([PIECES[token] for token in tokens])


def piece(text: str, tokens: Iterable[int], origins: Origins, finish: FinishReason | None = None) -> Output:
    return Output(index=0, request_id="r", text=text, token_ids=tuple(tokens), origins=origins, finish_reason=finish)


def test_text_is_cut_where_origins_change() -> None:
    spans = TextOrigins(bytes_of).spans(piece("The foxover", [0, 1, 7], (("ngram", 2), ("target", 1))))
    assert spans == [("ngram", "The fox"), ("target", "over")]


def test_a_character_of_two_tokens_belongs_to_the_one_that_completed_it() -> None:
    origins = TextOrigins(bytes_of)
    assert origins.spans(piece("fox", [1, 2], (("ngram", 2),))) == [("ngram", "fox")]
    assert origins.spans(piece("é", [3], (("target", 1),))) == [("target", "é")]


def test_text_that_was_held_back_keeps_its_origin() -> None:
    origins = TextOrigins(bytes_of)
    assert origins.spans(piece("The", [0, 4], (("draft", 2),))) == [("draft", "The")]
    assert origins.spans(piece("  ENover", [7], (("target", 1),))) == [("draft", "  EN"), ("target", "over")]


def test_text_after_a_stop_string_is_not_shown() -> None:
    explained = Explained(PLAIN, bytes_of)
    assert explained.piece(piece("The fox ", [0, 1, 4, 5], (("ngram", 4),), FinishReason.STOP)) == "[ngram: The fox ]"


def test_marks_close_before_the_next_origin_and_at_the_end() -> None:
    explained = Explained(PLAIN, bytes_of)
    first = explained.piece(piece("The fox", [0, 1], (("target", 1), ("ngram", 1))))
    second = explained.piece(piece("over", [7], (("ngram", 1),)))
    third = explained.piece(piece(" jumps\n", [6], (("draft", 1),), FinishReason.LENGTH))
    assert (first, second, third) == ("The [ngram: fox", "over", "][draft:  jumps\n]")


def test_colours_leave_the_text_as_it_is_and_never_cross_a_line() -> None:
    explained = Explained(COLOURED, bytes_of)
    shown = explained.piece(piece("The  jumps\nover", [0, 6, 7], (("target", 1), ("ngram", 2)), FinishReason.STOP))
    assert shown == "The \x1b[36m jumps\x1b[0m\n\x1b[36mover\x1b[0m"
    assert re.sub(r"\x1b\[\d+m", "", shown) == "The  jumps\nover"


def test_no_color_means_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    explained = Explained(Console(force_terminal=True), bytes_of)
    assert explained.piece(piece("over", [7], (("ngram", 1),), FinishReason.STOP)) == "[ngram: over]"


def test_the_legend_counts_tokens() -> None:
    explained = Explained(PLAIN, bytes_of)
    explained.piece(piece("The foxover", [0, 1, 7], (("suffix", 2), ("target", 1))))
    assert explained.legend().plain == "tokens: target 1, suffix 2"


PROMPT = "abbabbabbabbabb"
FORTY = ("--max-tokens", "40", "--ignore-eos", "--speculation", "4")
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


def without_marks(text: str) -> str:
    return re.sub(r"\[(?:ngram|suffix): ([^]]*)]", r"\1", text)


@pytest.mark.parametrize("prompts", [(PROMPT,), (PROMPT, "ab")], ids=["streamed", "batch"])
def test_a_run_is_explained_in_marks_where_it_is_piped(forerun: Forerun, prompts: tuple[str, ...]) -> None:
    result = forerun("run", "fake", *prompts, "--explain-tokens", *FORTY)
    assert result.exit_code == 0
    assert "[ngram: " in result.stdout
    assert without_marks(result.stdout) == "".join(oracle(f"{prompt}$", PARAMS) + "\n" for prompt in prompts)
    assert re.search(r"tokens: target \d+, .*ngram \d+", result.stderr)
    assert re.search(r"; speculation: \d+ of \d+ drafted tokens accepted \(\d+%\), \d\.\d per draft", result.stderr)


def test_json_says_where_tokens_came_from(forerun: Forerun) -> None:
    (line,) = forerun("run", "fake", PROMPT, "--json", *FORTY).stdout.splitlines()
    answer = json.loads(line)
    usage = answer["usage"]
    assert sum(count for _, count in answer["origins"]) == 40
    assert sum(count for name, count in answer["origins"] if name != "target") == usage["accepted_tokens"] > 0
    split = usage["drafters"].values()
    assert usage["drafters"]["ngram"][1] > 0
    assert [sum(column) for column in zip(*split, strict=True)] == [usage["drafted_tokens"], usage["accepted_tokens"]]
    assert usage["mean_accepted_length"] == pytest.approx(usage["accepted_tokens"] / usage["draft_steps"], abs=1e-3)
    assert usage["tokens_per_step"] == pytest.approx(40 / usage["steps"], abs=1e-3)
    assert "is_synthetic" not in answer


def test_synthetic_acceptance_is_announced_and_marked(forerun: Forerun) -> None:
    result = forerun("run", "fake", "ab", "--json", "--synthetic-acceptance", "1", *FORTY)
    assert "the text is INVALID" in result.stderr
    answer = json.loads(result.stdout)
    assert answer["is_synthetic"] is True
    assert answer["usage"]["is_synthetic"] is True
    assert answer["usage"]["accepted_tokens"] == answer["usage"]["drafted_tokens"] > 0
    assert forerun("run", "fake", "ab", "--synthetic-acceptance", "2").exit_code == 2


def usage(**changes: float) -> Usage:
    counts = {"prompt_tokens": 4, "cached_tokens": 0, "output_tokens": 200, "decode_ms": 1000.0, **changes}
    return Usage(**counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({}, "TTFT 0 ms"),
        (
            {"drafted_tokens": 150, "accepted_tokens": 120, "draft_steps": 23, "saved_ms": 455.2},
            "; speculation: 120 of 150 drafted tokens accepted (80%), 5.2 per draft, saved 455 ms",
        ),
        (
            {"drafted_tokens": 9, "accepted_tokens": 0, "draft_steps": 9, "saved_ms": -12.4},
            "; speculation: 0 of 9 drafted tokens accepted (0%), 0.0 per draft, cost 12 ms",
        ),
        ({"saved_ms": -3.0}, "TTFT 0 ms; speculation: cost 3 ms"),
        ({"saved_ms": 0.2}, "TTFT 0 ms"),
    ],
    ids=["no speculation", "saved", "cost", "others drafted", "nothing worth a word"],
)
def test_figures_say_what_speculation_did(changes: dict[str, float], ending: str) -> None:
    assert figures([usage(**changes)], 1.0).endswith(ending)
