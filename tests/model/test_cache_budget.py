"""K6: a host tier takes what it may, to the byte in its books and to a tenth in the process, whatever comes by."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun import SamplingParams
from tests.conftest import MakeTinyModel
from tests.model.serving import answers, serving, some_tokens
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

MIB = 2**20
ONE = SamplingParams(max_tokens=1)


def resident_bytes() -> int:
    """What the process has in memory, files it maps left out."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("prompts", "cap"), [(16, 4 * MIB), pytest.param(2000, 64 * MIB, marks=pytest.mark.slow)])
def test_unique_prompts_never_take_more_than_the_cap(prompts: int, cap: int, tiny_model: MakeTinyModel) -> None:
    with serving(tiny_model(TinyModel()), n_ctx=8192, cache_ram=cap) as engine:
        answers(engine, [some_tokens(1000, seed=10**6 + index) for index in range(8)], ONE)
        before = resident_bytes() - engine.stats().host_bytes
        for start in range(0, prompts, 8):
            answers(engine, [some_tokens(1000, seed=start + index) for index in range(8)], ONE)
            assert engine.stats().host_bytes <= cap
        assert engine.stats().host_bytes > 0.8 * cap, "nothing was pushed out: this shows nothing"
        if prompts > 100:  # of a few MiB a tenth is less than what else comes and goes
            assert resident_bytes() - before <= 1.1 * cap


def test_a_prompt_larger_than_the_cap_is_answered_and_not_kept(tiny_model: MakeTinyModel) -> None:
    with serving(tiny_model(TinyModel()), n_ctx=4096, cache_ram=20_000) as engine:
        answers(engine, [some_tokens(3000, seed=1)], ONE)
        assert engine.stats().host_bytes <= 20_000
