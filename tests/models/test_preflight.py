"""Judgements on made-up surveys, and on generated files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from forerun.core.costs import CostCurve
from forerun.core.forecast import Forecast
from forerun.errors import IncompatibleDraftError, ModelLoadError
from forerun.models.gguf_header import GgufHeader, read_header
from forerun.models.machine_memory import FreeMemory
from forerun.models.preflight import (
    Candidate,
    Finding,
    Limits,
    Preflight,
    Verdict,
    judge_context,
    judge_memory,
    judge_methods,
    judge_together,
    judge_vocabularies,
    size,
)
from forerun.models.prospects import Prospect, judge_prospect, judge_speed
from forerun.models.survey import ModelSurvey
from tests.conftest import MakeTinyModel
from tests.support.tiny_models import TinyModel

MIB = 1024 * 1024
LIMITS = Limits(
    n_ctx=8192, draft_n_ctx=8192, n_seq_max=128, max_num_seqs=16, max_num_batched_tokens=512, draft_tokens=32
)


def survey(**changes: Any) -> ModelSurvey:
    values: dict[str, Any] = {
        "n_ctx_train": 8192,
        "n_vocab": 100,
        "n_swa": 0,
        "is_recurrent": False,
        "is_hybrid": False,
        "generates": True,
        "has_gpu": False,
        "weights": 1000 * MIB,
        "kv": 100 * MIB,
        "state": 0,
        "compute": 50 * MIB,
        "outputs": 20 * MIB,
        "other": 30 * MIB,
    }
    return ModelSurvey(**values | changes)


def candidate(name: str = "m.gguf", **changes: Any) -> Candidate:
    header = GgufHeader(Path(name), 3, 0, MappingProxyType({"general.architecture": "llama"}), (), 0)
    return Candidate(header, survey(**changes))


def told(findings: list[Finding], verdict: Verdict) -> str:
    return "\n".join(finding.message for finding in findings if finding.verdict is verdict)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "dense memory"),
        ({"n_swa": 512}, "sliding window of 512 tokens"),
        ({"is_hybrid": True}, "hybrid memory (partly recurrent)"),
        ({"is_hybrid": True, "n_swa": 64}, "hybrid memory (partly recurrent, sliding window of 64 tokens)"),
        ({"is_recurrent": True}, "recurrent memory"),
    ],
)
def test_every_kind_of_memory_has_a_name(changes: dict[str, Any], words: str) -> None:
    assert survey(**changes).memory == words


def test_more_memory_than_is_free_is_refused_with_both_numbers() -> None:
    findings = judge_memory([candidate(), candidate("d.gguf")], FreeMemory(399 * MIB, "this machine"))
    (refusal,) = [finding for finding in findings if finding.verdict is Verdict.REFUSED]
    assert isinstance(refusal.error, ModelLoadError)
    assert "m.gguf and d.gguf: too little memory: 2.34 GiB needed, 399 MiB free on this machine" in refusal.message


def test_weights_that_do_not_fit_beside_the_rest_run_slowly_and_that_is_told() -> None:
    findings = judge_memory([candidate(), candidate("d.gguf")], FreeMemory(2399 * MIB, "this machine"))
    assert not told(findings, Verdict.REFUSED)
    assert "very slow" in told(findings, Verdict.WARNING)


def test_nearly_as_much_memory_as_is_free_is_told_and_half_of_it_is_well() -> None:
    assert "tight" in told(judge_memory([candidate()], FreeMemory(1300 * MIB, "here")), Verdict.WARNING)
    assert not told(judge_memory([candidate()], FreeMemory(2400 * MIB, "here")), Verdict.WARNING)


def test_what_memory_is_for_is_itemised() -> None:
    (item, _) = judge_memory([candidate(weights=500 * MIB, state=5 * MIB)], None)
    for part in ("705 MiB: weights 500 MiB", "KV cells 100 MiB", "recurrent states 5.0 MiB", "buffers 50 MiB"):
        assert part in item.message


def test_with_a_gpu_the_machine_s_memory_refuses_nothing() -> None:
    findings = judge_memory([candidate(has_gpu=True)], FreeMemory(MIB, "this machine"))
    assert not told(findings, Verdict.REFUSED)
    assert "GPU" in told(findings, Verdict.NOTE)


def test_contexts_within_what_models_were_trained_for_are_well() -> None:
    assert {finding.verdict for finding in judge_context(survey(), survey(), LIMITS)} == {Verdict.OK}


def test_a_draft_with_less_context_than_its_target_follows_that_far() -> None:
    limits = dataclasses.replace(LIMITS, draft_n_ctx=2048)
    assert "the draft holds 2048 tokens, the target 8192" in told(
        judge_context(survey(), survey(n_ctx_train=2048), limits), Verdict.WARNING
    )


def test_contexts_beyond_what_models_were_trained_for_are_told() -> None:
    warnings = told(judge_context(survey(n_ctx_train=100), survey(n_ctx_train=50), LIMITS), Verdict.WARNING)
    assert "the target's 8192 tokens are beyond the 100" in warnings
    assert "the draft's 8192 tokens are beyond the 50" in warnings


def test_n_grams_are_always_possible_and_mtp_needs_a_head(tiny_mtp_path: Path) -> None:
    plain = judge_methods(candidate(), None, LIMITS)
    assert "n-gram drafts, and drafts from past outputs: possible" in told(plain, Verdict.OK)
    assert "MTP drafts: not possible, the file has no NextN layers" in told(plain, Verdict.NOTE)
    with_head = Candidate(read_header(tiny_mtp_path), survey())
    head = dataclasses.replace(with_head, is_mtp=True)
    for draft in (None, head):
        assert "MTP drafts: possible" in told(judge_methods(with_head, draft, LIMITS), Verdict.OK)


def test_a_draft_as_large_as_its_target_looks_swapped() -> None:
    small, large = candidate(weights=100 * MIB), candidate("l.gguf")
    assert "10.0 times smaller" in told(judge_methods(large, small, LIMITS), Verdict.OK)
    assert "swapped?" in told(judge_methods(small, large, LIMITS), Verdict.WARNING)
    refused = judge_methods(large, small, LIMITS, fits=False)
    assert "draft model" not in told(refused, Verdict.OK) + told(refused, Verdict.WARNING)


def test_a_step_without_room_for_drafts_is_told() -> None:
    limits = dataclasses.replace(LIMITS, max_num_batched_tokens=20)
    assert "room for 4 drafted tokens beside 16" in told(judge_methods(candidate(), None, limits), Verdict.WARNING)


def test_vocabularies_are_judged_as_building_an_engine_judges_them(
    tiny_dense_path: Path, tiny_permuted_path: Path, tiny_poor_draft_path: Path, tiny_model: MakeTinyModel
) -> None:
    target = read_header(tiny_dense_path)
    (refusal,) = judge_vocabularies(target, read_header(tiny_permuted_path))
    assert isinstance(refusal.error, IncompatibleDraftError)
    assert [finding.verdict for finding in judge_vocabularies(target, read_header(tiny_poor_draft_path))] == ["ok"]
    padded = read_header(tiny_model(TinyModel(vocabulary="padded")))
    assert [finding.verdict for finding in judge_vocabularies(target, padded)] == ["ok", "note"]


def test_a_refused_pair_raises_its_first_refusal(tiny_dense_path: Path, tiny_foreign_path: Path) -> None:
    target, draft = read_header(tiny_dense_path), read_header(tiny_foreign_path)
    pair = [Candidate(target, survey()), Candidate(draft, survey())]
    found = Preflight(findings=judge_together(pair, target, draft, LIMITS, FreeMemory(1, "this machine")))
    assert not found.is_usable
    with pytest.raises(IncompatibleDraftError):
        found.require_usable()


# --- speed ---

STEEP = CostCurve((1, 2, 4, 8), (10.0, 20.0, 40.0, 80.0))
FLAT = CostCurve((1, 2, 4, 8), (10.0, 10.5, 11.0, 12.0))
CHEAP = CostCurve((1, 2), (1.0, 1.5))


def judged(*curves: CostCurve | None) -> tuple[Preflight, list[Prospect]]:
    found = Preflight(candidate(), candidate("d.gguf") if len(curves) > 1 else None, None, LIMITS)
    return found, judge_speed(found, curves, 8).prospects


def test_a_pair_that_can_only_be_slower_is_told_with_measured_numbers() -> None:
    found, prospects = judged(STEEP, FLAT)
    (warning,) = [finding for finding in found.findings if "draft model drafts" in finding.message]
    assert warning.verdict is Verdict.WARNING
    assert "can only be slower on this machine: 0.67 times plain" in warning.message
    assert "one row takes 10.0 ms here" in told(found.findings, Verdict.OK)
    assert "a drafted token takes 10.0 ms here" in told(found.findings, Verdict.OK)
    assert [prospect.break_even for prospect in prospects if prospect.method == "draft model"] == [None]
    assert found.is_usable, "slower is no refusal"


def test_a_pair_that_pays_is_told_from_which_acceptance_on() -> None:
    found, prospects = judged(FLAT, CHEAP)
    assert {finding.verdict for finding in found.findings} == {Verdict.OK}
    for prospect in prospects:
        assert prospect.break_even is not None
        assert f"pay from {prospect.break_even:.0%} acceptance on" in told(found.findings, Verdict.OK)
        assert [forecast.acceptance for forecast in prospect.forecasts] == [1.0, 0.9, 0.7, 0.5]
        speeds = [forecast.speedup for forecast in prospect.forecasts]
        assert speeds == sorted(speeds, reverse=True)


def test_what_hardly_pays_with_every_draft_accepted_is_a_warning() -> None:
    forecasts = tuple(Forecast(acceptance, 1, 1.02 * acceptance) for acceptance in (1.0, 0.9))
    assert judge_prospect(Prospect("n-gram", forecasts, 0.98)).verdict is Verdict.WARNING


def test_without_measured_costs_nothing_is_said_about_speed() -> None:
    for curves in ((None,), (None, CHEAP)):
        found, prospects = judged(*curves)
        assert prospects == []
        assert "--measure" in told(found.findings, Verdict.NOTE)
    found, prospects = judged(FLAT, None)
    assert [prospect.method for prospect in prospects] == ["n-gram"]


def test_bytes_are_shown_as_people_read_them() -> None:
    assert [size(number * MIB) for number in (1, 92, 1000, 1065)] == ["1.0 MiB", "92 MiB", "0.98 GiB", "1.04 GiB"]
