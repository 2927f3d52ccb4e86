"""Drafts keep to the rows whose logits there is memory for."""

from __future__ import annotations

import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.request import SamplingParams
from forerun.core.step import PrefillRows, StepPlan
from tests.core.harness import Harness

RUNNING = 4


def logit_rows(plan: StepPlan) -> int:
    """Rows that are sampled from: the decoded ones, their drafts, and the last one of a prompt."""
    drafted = sum(len(row.drafts) for row in plan.decode)
    sampled = sum(run.sampling is not None for run in plan.prefill if isinstance(run, PrefillRows))
    return len(plan.decode) + drafted + sampled


def most_rows(limit: int | None) -> int:
    """Of the steps of four requests that repeat themselves, and so draft far; they begin one after the other."""
    config = SchedulerConfig(
        n_ctx=2000, max_num_seqs=RUNNING, max_num_batched_tokens=100, speculation=16, max_logit_rows=limit
    )
    harness = Harness(config)
    for name in "abcd":
        harness.add(name, [1, 2, 3, 4] * 12, SamplingParams(max_tokens=40))
        harness.step()
    harness.run()
    harness.assert_all_right()
    return max(map(logit_rows, harness.plans))


@pytest.mark.parametrize("limit", [RUNNING, 7, 12])
def test_a_step_asks_for_no_more_logits_than_there_is_memory_for(limit: int) -> None:
    assert most_rows(limit) <= limit


def test_where_it_is_not_said_drafts_have_all_rows_of_a_step() -> None:
    assert most_rows(None) > 12
    assert most_rows(12) > 7
