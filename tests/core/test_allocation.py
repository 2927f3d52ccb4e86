"""Draft rows by expected gain."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forerun.core.allocation import DraftOption, FixedDraftAllocator, GainAllocator, StepLoad
from forerun.core.costs import CostCurve

# Milliseconds of a decode on the reference machine (design/llama-facts.md), and of one where rows are nearly free.
CPU = CostCurve(
    (1, 2, 3, 4, 6, 8, 12, 16, 32, 64), (36.0, 68.0, 96.0, 124.0, 178.0, 260.0, 328.0, 329.0, 570.0, 1009.0)
)
GPU = CostCurve((1, 8, 64), (10.0, 10.5, 14.0))
DRAFT = CostCurve((1, 16), (2.0, 2.4))


def option(rate: float, length: int = 16, *, uses_model: bool = False) -> DraftOption:
    return DraftOption([rate ** (i + 1) for i in range(length)], uses_model)


def load(sequences: int, other_rows: int = 0) -> StepLoad:
    return StepLoad(sequences, other_rows, cells=0)


def speed(costs: CostCurve, options: list[DraftOption], lengths: list[int]) -> float:
    expected = sum(sum(option.chances[:length]) for option, length in zip(options, lengths, strict=True))
    return (len(options) + expected) / costs.predict(len(options) + sum(lengths))


def test_where_rows_cost_nearly_a_step_a_doubtful_draft_is_not_taken() -> None:
    assert GainAllocator(CPU).allocate([option(0.6)], 64, load(1)) == [0]


def test_a_sure_copy_goes_to_the_cheap_end_of_a_stretch() -> None:
    (length,) = GainAllocator(CPU).allocate([option(0.995, 31)], 64, load(1))
    assert length >= 15, "16 rows cost what 12 do"


def test_where_rows_are_free_even_poor_drafts_are_taken() -> None:
    (length,) = GainAllocator(GPU).allocate([option(0.3)], 64, load(1))
    assert length >= 2


def test_rows_go_where_they_are_accepted() -> None:
    good, poor = GainAllocator(GPU).allocate([option(0.9), option(0.05)], 64, load(2))
    assert good > poor


def test_under_load_drafting_is_turned_down() -> None:
    options = [option(0.5, 4) for _ in range(1)]
    alone = GainAllocator(GPU).allocate(options, 64, load(1))
    crowded = GainAllocator(CPU).allocate(options, 64, load(16))
    assert alone > crowded == [0]


def test_the_draft_model_s_own_time_counts() -> None:
    cheap, dear = CostCurve((1,), (0.1,)), CostCurve((1,), (30.0,))
    options = [option(0.8, 4, uses_model=True)]
    assert GainAllocator(GPU, cheap).allocate(options, 64, load(1))[0] > 0
    assert GainAllocator(GPU, dear).allocate(options, 64, load(1)) == [0]
    assert GainAllocator(GPU, None).allocate(options, 64, load(1)) == [0], "there is no draft model"


def test_sequences_that_draft_together_share_the_draft_model_s_decodes() -> None:
    slow = CostCurve((1, 16), (6.0, 6.5))
    alone = GainAllocator(GPU, slow).allocate([option(0.7, 4, uses_model=True)], 64, load(1))
    eight = GainAllocator(GPU, slow).allocate([option(0.7, 4, uses_model=True)] * 8, 64, load(8))
    assert sum(eight) / 8 >= sum(alone)


@given(st.lists(st.integers(0, 10)), st.integers(-5, 40), st.integers(0, 8))
def test_a_fixed_length_gives_nobody_more_than_wanted_and_all_together_no_more_than_there_are_rows(
    wanted: list[int], spare: int, maximum: int
) -> None:
    options = [option(0.5, length) for length in wanted]
    granted = FixedDraftAllocator(maximum).allocate(options, spare, load(len(options)))
    assert all(0 <= got <= min(want, maximum) for got, want in zip(granted, wanted, strict=True))
    assert sum(granted) <= max(spare, 0)


def test_a_fixed_length_is_shared_equally_when_rows_are_short() -> None:
    options = [option(0.5, length) for length in (8, 8, 0, 8)]
    assert FixedDraftAllocator(8).allocate(options, 10, load(4)) == [3, 3, 0, 3]
    assert FixedDraftAllocator(4).allocate(options, 100, load(4)) == [4, 4, 0, 4]


def hopeful(option: DraftOption) -> int:
    """Tokens that are looked at: those less likely than 0.02 are left out."""
    return sum(chance >= 0.02 for chance in option.chances)


@example([(0.01953125, 1)], 1, GPU)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 4)), min_size=1, max_size=3),
    st.integers(0, 8),
    st.sampled_from([CPU, GPU]),
)
def test_nothing_beats_what_was_allocated(drawn: list[tuple[float, int]], spare: int, costs: CostCurve) -> None:
    options = [option(rate, length) for rate, length in drawn]
    allocated = GainAllocator(costs, margin=1.0).allocate(options, spare, load(len(options)))
    assert sum(allocated) <= spare
    best = max(
        speed(costs, options, list(lengths))
        for lengths in itertools.product(*(range(hopeful(o) + 1) for o in options))
        if sum(lengths) <= spare
    )
    assert speed(costs, options, allocated) == pytest.approx(best)


@given(st.integers(1, 8), st.integers(0, 64), st.floats(0.0, 0.99))
def test_what_is_allocated_is_expected_to_be_faster_than_nothing(sequences: int, other_rows: int, rate: float) -> None:
    options = [option(rate, 6) for _ in range(sequences)]
    lengths = GainAllocator(CPU, DRAFT).allocate(options, 64, load(sequences, other_rows))
    if any(lengths):
        rows = sequences + other_rows
        gained = sum(sum(o.chances[:n]) for o, n in zip(options, lengths, strict=True))
        extra = CPU.predict(rows + sum(lengths)) - CPU.predict(rows)
        assert gained / extra > sequences / CPU.predict(sequences)
