"""What fits where, from made-up surveys: arithmetic, and the lines that are told."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.models.findings import Verdict
from forerun.models.fit import MOST_CHOSEN, Fit, Place, fit_of, places_of
from forerun.models.machine_memory import FreeMemory
from forerun.models.memory_findings import judge_fit, judge_places
from forerun.models.survey import GpuShare, ModelSurvey
from forerun.native.survey import Log
from tests.models.test_preflight import survey

MIB = 2**20
GIB = 2**30


def place(**changes: Any) -> Place:
    values: dict[str, Any] = {
        "where": "this machine",
        "needed": 4 * GIB,
        "weights": 2 * GIB,
        "kv": GIB,
        "free": 10 * GIB,
    }
    return Place(**values | changes)


def on_gpu(**changes: Any) -> ModelSurvey:
    share = GpuShare(name="CUDA0", weights=900 * MIB, kv=100 * MIB, compute=40 * MIB)
    return survey(gpus=(share,), **changes)


def test_without_a_gpu_all_of_it_is_in_the_machine_s_memory() -> None:
    one = survey(state=7 * MIB)
    (host,) = places_of([one, one], FreeMemory(9, "this machine"), {}, beside=5)
    assert (host.needed, host.weights, host.kv, host.states) == (2 * one.total + 5, 2000 * MIB, 200 * MIB, 14 * MIB)
    assert (host.where, host.free, host.is_gpu) == ("this machine", 9, False)


def test_what_is_on_a_gpu_is_not_counted_in_the_machine_s_memory_and_two_models_share_one() -> None:
    host, gpu = places_of([on_gpu(), on_gpu()], None, {"CUDA0": 8 * GIB})
    assert (host.needed, host.weights, host.kv) == (2 * (1200 - 1040) * MIB, 200 * MIB, 0)
    assert (gpu.where, gpu.needed, gpu.kv, gpu.free, gpu.is_gpu) == ("CUDA0", 2080 * MIB, 200 * MIB, 8 * GIB, True)


def test_as_much_as_tokens_take_stays_free_in_the_machine_s_memory_and_on_a_gpu_only_a_margin() -> None:
    assert place(free=int(5.1 * GIB / 0.85)).has_room
    assert not place(free=int(4.9 * GIB / 0.85)).has_room
    assert place(free=int(4.1 * GIB / 0.85), is_gpu=True).has_room
    assert not place(free=int(3.9 * GIB / 0.85), is_gpu=True).has_room
    assert place(free=None).has_room, "nobody tells"


def test_what_fits_lies_on_a_line_through_two_surveys() -> None:
    fit = fit_of([place()], [place(needed=5 * GIB)], (1024, 1024 + 16_384), 131_072, (129, 1))
    assert fit.bytes_a_token == 64 * 1024
    assert fit.tokens == 1024 + int((8.5 - 4) * GIB) // (64 * 1024)
    assert fit.longest == fit.tokens < 131_072
    assert fit.requests(2048) == fit.tokens // 2048
    assert fit.requests(1) == 255, "there are no more sequence ids"


def test_the_memory_that_has_least_room_decides() -> None:
    gpu = place(where="CUDA0", needed=7 * GIB, free=8 * GIB, is_gpu=True)
    later = place(where="CUDA0", needed=8 * GIB, free=8 * GIB, is_gpu=True)
    assert fit_of([place(), gpu], [place(), later], (1024, 2048), 4096, (129, 1)).tokens == 1024 - int(0.2 * 1024)
    assert fit_of([place(free=None)], [place(needed=5 * GIB, free=None)], (1024, 2048), 4096, (9, 1)).tokens is None


def test_requests_that_take_a_state_each_are_as_many_as_there_is_memory_for() -> None:
    fit = fit_of([place(states=GIB)], [place(states=GIB)], (1024, 2048), 4096, (32, 2))
    assert (fit.tokens, fit.bytes_a_token, fit.longest) == (None, 0, 4096)
    assert fit.states == fit.requests(4096) == int((8.5 - 4 + 1) * GIB / (GIB / 32 * 2))


@pytest.mark.parametrize("tokens", [0, 100, 5000, 10**6])
def test_what_fits_is_told_with_the_longest_request_and_how_many_at_once(tokens: int) -> None:
    fit = Fit(4096, 23_040, tokens)
    (line,) = judge_fit(fit, 4096, is_asked=True)
    assert line.verdict is Verdict.OK
    assert f"a token takes 22 KiB, {tokens} fit: one request of {min(tokens, 4096)} (trained for 4096)" in line.message
    assert f"{fit.requests(2048)} of 2048 tokens" in line.message


def test_a_choice_below_what_fits_is_told_with_what_may_be_asked_for() -> None:
    fit = Fit(65_536, 23_040, 50_000)
    _, note = judge_fit(fit, 8192, is_asked=False)
    assert (note.verdict, "--n-ctx takes up to 50000" in note.message) == (Verdict.NOTE, True)
    assert len(list(judge_fit(fit, 8192, is_asked=True))) == 1
    assert len(list(judge_fit(fit, MOST_CHOSEN, is_asked=False))) == 1
    (untold,) = judge_fit(Fit(4096, 23_040), 4096, is_asked=False)
    assert untold.verdict is Verdict.NOTE


def test_a_gpu_that_is_too_small_refuses_and_one_that_tells_nothing_does_not() -> None:
    def of(free: int | None) -> list[Verdict]:
        gpu = place(where="CUDA0", free=free, is_gpu=True)
        return [finding.verdict for finding in judge_places([place(), gpu], [], 0)]

    assert of(5 * GIB) == [Verdict.OK, Verdict.OK]
    assert of(3 * GIB) == [Verdict.OK, Verdict.REFUSED]
    assert of(None) == [Verdict.OK, Verdict.NOTE]


GPU_LOG = """\
load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device CUDA0, is_swa = 0
load_tensors: layer   2 assigned to device CUDA0, is_swa = 0
llama_kv_cache: layer   0: dev = CPU
llama_kv_cache: layer   1: dev = CUDA0
sched_reserve:      CUDA0 compute buffer size =   256.00 MiB
sched_reserve:  CUDA_Host compute buffer size =    17.50 MiB
"""
"""As llama.cpp writes it for a model of two layers and its output (src/llama-model.cpp, llama-kv-cache.cpp,
llama-context.cpp)."""


def test_llama_cpp_s_log_says_what_lies_on_a_gpu() -> None:
    log = Log()
    log(1, GPU_LOG.encode(), None)
    assert log.share("CUDA0", 0, kv=1000) == {"layers": [1, 2], "kv": 500, "compute": 256 * MIB}
    assert log.share("CUDA1", 0, kv=1000) == {"layers": [], "kv": 0, "compute": 0}
