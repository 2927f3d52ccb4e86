"""`forerun check`: the report, its exit codes, and bad files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from forerun.cli.check import finding_line
from forerun.core.costs import CostCurve
from forerun.engine_config import EngineConfig
from forerun.errors import ModelLoadError
from forerun.models.findings import Finding, Verdict
from forerun.models.machine_memory import FreeMemory
from forerun.models.preflight import Preflight
from forerun.models.prospects import Check
from tests.cli.conftest import Forerun
from tests.conftest import MakeTinyModel
from tests.support.tiny_models import TinyModel

FLAT, DEAR = CostCurve((1, 2, 4, 8), (10.0, 10.5, 11.0, 12.0)), CostCurve((1, 2, 4, 8), (20.0, 40.0, 80.0, 160.0))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def known_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that knows the good model after its first use."""
    return tmp_path_factory.mktemp("known")


def made_up(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> list[tuple[EngineConfig, bool]]:
    asked: list[tuple[EngineConfig, bool]] = []

    def check(config: EngineConfig, *, measures: bool, progress: object = None) -> Check:
        del progress
        asked.append((config, measures))
        return Check(Preflight(findings=list(findings)))

    monkeypatch.setattr("forerun.cli.check.check", check)
    return asked


def test_findings_are_a_line_each_with_their_verdict(forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "words " * 60
    made_up(monkeypatch, Finding(Verdict.OK, "target", long), Finding(Verdict.WARNING, "context", "short\n of it"))
    result = forerun("check", "m.gguf")
    assert result.exit_code == 0
    first, second, last = result.stdout.splitlines()
    assert first == f"ok       target      {long.strip()}"
    assert second == "warning  context     short of it"
    assert last == "usable: 1 warning"


def test_a_refusal_ends_with_2(forerun: Forerun, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, Finding(Verdict.REFUSED, "memory", "too little"))
    for arguments in ((), ("--json",)):
        result = forerun("check", "m.gguf", *arguments)
        assert result.exit_code == 2
        assert "too little" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), (True, False)),
        (("--measure",), (True, True)),
        (("--no-measure",), (False, False)),
        (("--calibrate",), (True, True)),
    ],
)
def test_costs_are_measured_where_they_are_not_known_unless_said_otherwise(
    forerun: Forerun, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: tuple[bool, bool]
) -> None:
    asked = made_up(monkeypatch)
    assert forerun("check", "m.gguf", *arguments).exit_code == 0
    ((config, measures),) = asked
    assert (measures, config.recalibrate) == expected


def test_square_brackets_in_names_are_shown_as_they_are() -> None:
    assert "[bold]x[/bold].gguf" in finding_line(Finding(Verdict.OK, "target", "[bold]x[/bold].gguf")).plain


def test_the_help_has_examples(forerun: Forerun) -> None:
    shown = forerun("check", "--help").stdout
    assert "forerun check large.gguf --draft small.gguf" in shown
    assert "--no-measure" in shown


def bad_file(kind: str, folder: Path, good: Path) -> Path:
    path = folder / "bad.gguf"
    if kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("hello")
    elif kind in ("cut header", "cut weights"):
        path.write_bytes(good.read_bytes()[: 1_000 if kind == "cut header" else -1_000])
    elif kind == "unreadable":
        path.write_bytes(good.read_bytes())
        path.chmod(0)
    elif kind == "dangling link":
        path.symlink_to(folder / "nowhere")
    return path


@pytest.mark.model
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("missing", "no such file"),
        ("directory", "this is a directory"),
        ("empty", "the file is empty"),
        ("text", "not a GGUF file"),
        ("cut header", "truncated"),
        ("cut weights", "truncated"),
        ("unreadable", "cannot be read"),
        ("dangling link", "does not exist"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    forerun: Forerun,
    tmp_path: Path,
    tiny_dense_path: Path,
    known_models: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    kind: str,
    told: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(known_models))
    if kind == "unreadable" and os.geteuid() == 0:
        pytest.skip("root reads everything")
    bad = str(bad_file(kind, tmp_path, tiny_dense_path))
    models = (bad, "--draft", str(tiny_dense_path)) if role == "target" else (str(tiny_dense_path), "--draft", bad)
    result = forerun("check", *models)
    assert result.exit_code == 2
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("refused")]
    assert line.split()[1] == role
    assert told in line
    assert "Traceback" not in result.output


@pytest.mark.model
def test_a_pair_with_unlike_vocabularies_is_refused_with_the_tokens_that_differ(
    forerun: Forerun, tiny_dense_path: Path, tiny_permuted_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.compose._measured", lambda *_: pytest.fail("weights were loaded"))
    result = forerun("check", str(tiny_dense_path), "--draft", str(tiny_permuted_path))
    assert result.exit_code == 2
    assert "2 of 4096 tokens differ: token 1000:" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("not usable: 1 refused")


@pytest.mark.model
def test_a_draft_as_dear_as_its_target_is_told_to_be_slower_with_measured_numbers(
    forerun: Forerun, tiny_dense_path: Path, tiny_unrelated_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "forerun.compose._measured", lambda one, *_: FLAT if one.header.path == tiny_dense_path else DEAR
    )
    result = forerun("check", str(tiny_dense_path), "--draft", str(tiny_unrelated_path), "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["usable"] is True
    (slower,) = [one["message"] for one in report["findings"] if "can only be slower" in one["message"]]
    assert "draft model drafts" in slower
    by_method = {prospect["method"]: prospect for prospect in report["prospects"]}
    assert by_method["draft model"]["break_even"] is None
    assert by_method["n-gram"]["break_even"] < 0.2
    assert report["limits"]["n_ctx"] == report["limits"]["draft_n_ctx"] == 8192
    assert 0 < report["memory"]["needed"] < report["memory"]["free"]
    assert report["memory"]["target"]["kv"] == report["memory"]["draft"]["kv"]
    assert report["memory"]["places"][0]["needed"] == report["memory"]["needed"] <= report["memory"]["resident"]
    assert report["fit"]["tokens"] > report["fit"]["longest"] == 8192
    assert report["fit"]["requests"]["8192"] <= report["fit"]["requests"]["2048"]
    assert (report["rates"]["alone"], report["rates"]["requests"]) == (100.0, 8)


@pytest.mark.model
def test_costs_are_measured_once_and_said_so(forerun: Forerun, tiny_dense_path: Path) -> None:
    first = forerun("check", str(tiny_dense_path), "--n-ctx", "512", "--threads", "1")
    assert first.exit_code == 0
    assert "measuring" in first.stderr
    assert "n-gram drafts" in first.stdout
    again = forerun("check", str(tiny_dense_path), "--n-ctx", "512", "--threads", "1", "--no-measure")
    assert "measuring" not in again.stderr
    assert "one row takes" in again.stdout


@pytest.mark.model
def test_memory_that_is_not_there_is_refused_with_both_numbers(
    forerun: Forerun, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.models.preflight.free_memory", lambda: FreeMemory(20 * 2**20, "this machine"))
    result = forerun("check", str(tiny_dense_path), "--draft", str(tiny_dense_path))
    assert result.exit_code == 2
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("refused")]
    assert re.search(r"too little memory: \d{2,3} MiB needed, 20 MiB free on this machine", line)


@pytest.mark.model
def test_what_would_fit_is_told_for_the_context_that_is_asked_for(forerun: Forerun, tiny_dense_path: Path) -> None:
    shown = forerun("check", str(tiny_dense_path), "--n-ctx", "4096", "--no-measure").stdout
    (line,) = [line for line in shown.splitlines() if line.split()[1:2] == ["fit"]]
    assert "one request of 8192 (trained for 8192); at once" in line
    assert re.search(r"\d+ of 2048 tokens, or \d+ of 4096 tokens", line)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["swa", "hybrid", "recurrent"])
def test_kinds_of_memory_are_told_and_not_refused(forerun: Forerun, kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(f"tiny_{kind}_path")
    result = forerun("check", str(path), "--no-measure")
    assert result.exit_code == 0
    words = {"swa": "sliding window of 64 tokens", "hybrid": "hybrid memory", "recurrent": "recurrent memory"}
    assert words[kind] in result.stdout.splitlines()[0]


@pytest.mark.model
def test_a_model_s_own_head_is_judged_and_measured_as_its_draft(
    forerun: Forerun, tiny_mtp_path: Path, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.compose._measured", lambda one, *_: DEAR if one.is_mtp else FLAT)
    report = json.loads(forerun("check", str(tiny_mtp_path), "--mtp", "--json").stdout)
    assert [prospect["method"] for prospect in report["prospects"]] == ["n-gram", "MTP"]
    assert report["memory"]["draft"]["weights"] == 0, "counted with the target"
    assert report["memory"]["draft"]["kv"] > 0
    refused = forerun("check", str(tiny_dense_path), "--mtp")
    assert refused.exit_code == 2
    assert "its MTP head cannot draft: the file has no NextN layers" in refused.stdout


@pytest.mark.model
@pytest.mark.parametrize(("load", "is_told"), [(0.2, False), (3.0, True)])
def test_costs_measured_beside_other_programs_are_told_to_be_so(
    forerun: Forerun, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, is_told: object
) -> None:
    monkeypatch.setattr("forerun.compose._measured", lambda *_: FLAT)
    monkeypatch.setattr("forerun.compose.machine_load", lambda: load)
    shown = forerun("check", str(tiny_dense_path)).stdout
    assert ("other programs keep 3.0 cores busy" in shown) == is_told


@pytest.mark.model
def test_costs_that_cannot_be_measured_are_told_and_the_pair_stays_usable(
    forerun: Forerun, tiny_dense_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ModelLoadError("no context could be made")

    monkeypatch.setattr("forerun.compose._measured", fails)
    result = forerun("check", str(tiny_dense_path))
    assert result.exit_code == 0
    assert "costs could not be measured: no context could be made" in result.stdout
    assert "what drafting brings here is not known" in result.stdout


@pytest.mark.model
def test_a_model_that_writes_no_text_is_refused(forerun: Forerun, tiny_model: MakeTinyModel) -> None:
    path = tiny_model(TinyModel(kind="bert"))
    result = forerun("check", str(path), "--no-measure")
    assert result.exit_code == 2
    assert "an embedding model (bert): it writes no text, and `forerun serve`" in " ".join(result.stdout.split())
