"""What an answer took, told as OpenAI and llama.cpp tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.request import Usage
from forerun.server.timings import completion_usage, timings

DRAFTED = Usage(
    prompt_tokens=100,
    cached_tokens=60,
    cached_host_tokens=20,
    cached_disk_tokens=10,
    output_tokens=50,
    drafted_tokens=40,
    accepted_tokens=30,
    drafters={"ngram": (30, 25), "model": (10, 5)},
    steps=20,
    draft_steps=10,
    saved_ms=120.0,
    queue_ms=5.0,
    prefill_ms=80.0,
    decode_ms=500.0,
)
PLAIN = Usage(prompt_tokens=100, cached_tokens=99, output_tokens=7, prefill_ms=2.0, decode_ms=70.0)


def test_timings_leave_cached_tokens_out_of_the_prompt_and_its_rate() -> None:
    told = timings(DRAFTED)
    assert (told.cache_n, told.prompt_n, told.prompt_ms) == (60, 40, 80.0)
    assert told.prompt_per_second == pytest.approx(500.0)
    assert told.prompt_per_token_ms == pytest.approx(2.0)
    assert (told.predicted_n, told.predicted_ms) == (50, 500.0)
    assert told.predicted_per_second == pytest.approx(100.0)
    assert told.predicted_per_token_ms == pytest.approx(10.0)
    assert (told.draft_n, told.draft_n_accepted) == (40, 30)


def test_where_no_time_passed_and_nothing_came_rates_are_zero() -> None:
    told = timings(Usage(prompt_tokens=3, cached_tokens=3, output_tokens=0))
    assert told.prompt_per_second == told.predicted_per_second == told.prompt_per_token_ms == 0.0
    assert told.predicted_per_token_ms == 0.0


def test_a_prompt_counts_once_and_each_choice_adds_its_tokens() -> None:
    told = completion_usage([[DRAFTED, PLAIN]], reasoning_tokens=4)
    assert (told.prompt_tokens, told.completion_tokens, told.total_tokens) == (100, 57, 157)
    assert told.prompt_tokens_details.cached_tokens == 60  # the second choice shares what the first computed
    assert told.prompt_tokens_details.cached_host_tokens == 20
    assert told.prompt_tokens_details.cached_disk_tokens == 10
    assert told.completion_tokens_details.reasoning_tokens == 4


def test_several_prompts_add_up() -> None:
    told = completion_usage([[DRAFTED], [PLAIN]])
    assert told.prompt_tokens == 200
    assert told.prompt_tokens_details.cached_tokens == 159


def test_speculation_is_told_by_drafter_and_only_where_something_was_drafted() -> None:
    told = completion_usage([[DRAFTED, replace(DRAFTED, drafters={"ngram": (40, 30)})]]).speculation
    assert told is not None
    assert (told.drafted_tokens, told.accepted_tokens) == (80, 60)
    assert told.drafters == {"ngram": (70, 55), "model": (10, 5)}
    assert told.mean_accepted_length == pytest.approx(3.0)
    assert told.saved_ms == pytest.approx(240.0)
    assert completion_usage([[PLAIN]]).speculation is None
