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
from forerun.models.findings import Finding, Verdict, size, size_a_token
from forerun.models.gguf_header import GgufHeader, read_header
from forerun.models.machine_memory import FreeMemory
from forerun.models.preflight import (
    Candidate,
    Preflight,
    judge_context,
    judge_memory,
    judge_methods,
    judge_together,
    judge_vocabularies,
)
from forerun.models.prospects import Prospect, judge_prospect, judge_speed
from forerun.models.survey import ModelSurvey
from forerun.models.wanted import Limits
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
        "cells": 8192,
        "generates": True,
        "weights": 1000 * MIB,
        "kv": 100 * MIB,
        "state": 0,
        "compute": 50 * MIB,
        "outputs": 20 * MIB,
        "other": 30 * MIB,
        "repacked": 0,
        "program": 40 * MIB,
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


def memory_of(
    target: Candidate, draft: Candidate | None = None, *, free: int | None = None, cache_ram: int = 0
) -> list[Finding]:
    found = Preflight(target, draft, None if free is None else FreeMemory(free * MIB, "this machine"))
    found.limits = dataclasses.replace(LIMITS, cache_ram=cache_ram)
    return judge_memory(found)


def test_more_memory_than_is_free_is_refused_with_both_numbers() -> None:
    findings = memory_of(candidate(), candidate("d.gguf"), free=399)
    (refusal,) = [finding for finding in findings if finding.verdict is Verdict.REFUSED]
    assert isinstance(refusal.error, ModelLoadError)
    assert "m.gguf and d.gguf: too little memory: 2.34 GiB needed, 399 MiB free on this machine" in refusal.message


def test_weights_that_do_not_fit_beside_the_rest_run_slowly_and_that_is_told() -> None:
    findings = memory_of(candidate(), candidate("d.gguf"), free=2399)
    assert not told(findings, Verdict.REFUSED)
    assert "very slow" in told(findings, Verdict.WARNING)


def test_nearly_as_much_memory_as_is_free_is_told_and_half_of_it_is_well() -> None:
    assert "tight" in told(memory_of(candidate(), free=1300), Verdict.WARNING)
    assert not told(memory_of(candidate(), free=2400), Verdict.WARNING)


def test_what_memory_is_for_is_itemised() -> None:
    (item, _) = memory_of(candidate(weights=500 * MIB, state=5 * MIB))
    for part in (
        "705 MiB: weights 500 MiB",
        "KV cells (12 KiB a token) 100 MiB",
        "recurrent states 5.0 MiB",
        "buffers 50 MiB",
    ):
        assert part in item.message


def test_cached_prefixes_that_find_no_room_beside_the_models_are_told() -> None:
    assert "cached prefixes may take 0.98 GiB" in told(
        memory_of(candidate(), free=2400, cache_ram=1000 * MIB), Verdict.OK
    )
    crowded = memory_of(candidate(), free=2000, cache_ram=1000 * MIB)
    assert "more than is left: give them less" in told(crowded, Verdict.WARNING)


def test_weights_that_are_copied_for_the_processor_are_needed_once_and_resident_twice() -> None:
    findings = memory_of(candidate(repacked=600 * MIB), free=2400)
    assert "1.17 GiB needed" in told(findings, Verdict.OK)
    assert "1.76 GiB will be resident: 600 MiB of the weights are copied" in told(findings, Verdict.OK)


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
    found = Preflight(Candidate(target, survey()), Candidate(draft, survey()), FreeMemory(1, "this machine"))
    found.limits = LIMITS
    found.findings = judge_together(found, target, draft)
    assert not found.is_usable
    with pytest.raises(IncompatibleDraftError):
        found.require_usable()


# --- speed ---

STEEP = CostCurve((1, 2, 4, 8), (10.0, 20.0, 40.0, 80.0))
FLAT = CostCurve((1, 2, 4, 8), (10.0, 10.5, 11.0, 12.0))
CHEAP = CostCurve((1, 2), (1.0, 1.5))


def judged(*curves: CostCurve | None) -> tuple[Preflight, tuple[Prospect, ...]]:
    found = Preflight(candidate(), candidate("d.gguf") if len(curves) > 1 else None, limits=LIMITS)
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


def test_measured_costs_say_how_many_tokens_a_second_they_make() -> None:
    rates = judge_speed(judged(FLAT)[0], (FLAT,), 8).rates
    assert rates is not None
    assert (rates.alone, rates.requests) == (100.0, 8)
    assert rates.together == rates.prompt == pytest.approx(1000 * 8 / 12)
    told_rates = "about 100 tokens a second for one answer, 667 for 8 together, and 667 of a prompt, without drafts"
    assert told_rates in told(judged(FLAT)[0].findings, Verdict.OK)


def test_without_measured_costs_nothing_is_said_about_speed() -> None:
    for curves in ((None,), (None, CHEAP)):
        found, prospects = judged(*curves)
        assert prospects == ()
        assert "--measure" in told(found.findings, Verdict.NOTE)
    found, prospects = judged(FLAT, None)
    assert [prospect.method for prospect in prospects] == ["n-gram"]


def test_bytes_are_shown_as_people_read_them() -> None:
    assert [size(number * MIB) for number in (1, 92, 1000, 1065)] == ["1.0 MiB", "92 MiB", "0.98 GiB", "1.04 GiB"]
    assert [size_a_token(number) for number in (512, 23_040)] == ["0.5 KiB", "22 KiB"]
