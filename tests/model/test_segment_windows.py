"""Sliding windows that have lost cells: nothing goes on behind a gap, stored or not."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.core.prompt import Tokens
from forerun.core.step import (
    ClearSequence,
    ForkSequence,
    StoreSegment,
    TruncateSequence,
)
from tests.model.driving import at, random_tokens
from tests.model.segment_bench import (
    RECIPES,
    WINDOW,
    Bench,
    assert_alike,
    assert_done,
    headers,
    restores,
    stores,
)

pytestmark = pytest.mark.model


def with_gap(bench: Bench) -> tuple[Tokens, int]:
    """A sequence 1 of 400 tokens whose first window cells others have taken; from where it is whole."""
    tokens = random_tokens(400)
    bench.feed(0, random_tokens(20, seed=1))
    bench.feed(1, tokens)
    bench.do(ClearSequence(0))
    bench.feed(2, random_tokens(100, seed=2))
    bench.do(ClearSequence(2))
    first = bench.context.held_from()[1]
    assert 0 < first < 400 - WINDOW
    return tokens, first


def test_a_window_with_a_gap_is_stored_as_such_and_comes_back_as_such(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["sliding window"]), n_ctx=1024)
    tokens, first = with_gap(bench)
    segments = headers(tokens, (30, 300, 400))
    result = assert_done(bench.do(*stores(1, segments)))
    assert result.stored_from == {segments[0].key: 30, segments[1].key: first}, "the third one is whole"
    assert bench.store.headers[segments[1].key].whole_from == result.stored_from[segments[1].key]
    expected = bench.next_logits(1, tokens)
    result = assert_done(bench.do(ClearSequence(1), *restores(3, segments)))
    assert bench.held(3) == (400, 0)
    assert result.held_from == {3: first}
    assert bench.do(*stores(3, segments)).stored_from == {segments[0].key: 30, segments[1].key: first}
    assert_alike(bench.next_logits(3, tokens), expected)
    result = bench.do(TruncateSequence(3, at(first + WINDOW - 2)))
    assert result.failure is not None


def test_no_sequence_goes_on_behind_a_gap(load: Any, make_bench: Any) -> None:
    """Also not by way of a splice whose first position is there, nor of a fork."""
    bench = make_bench(load(RECIPES["sliding window"]), n_ctx=2048)
    whole = random_tokens(400)
    bench.feed(4, whole)
    (start,) = headers(whole, (30,))
    assert_done(bench.do(StoreSegment(4, start), ClearSequence(4)))
    tokens, first = with_gap(bench)
    assert (tokens == whole).all()
    segments = headers(tokens, (30, 400))
    assert_done(bench.do(StoreSegment(1, segments[1])))
    operations = restores(3, segments)
    for upto in (first + 1, first + WINDOW - 2):
        part = restores(3, segments, upto=upto)
        result = bench.do(*part)
        assert result.failure is not None
        assert "restored with gaps" in result.failure.message
        assert not result.unrestorable
        assert bench.held(3) == (0, 0)
        result = bench.do(*part, ForkSequence(3, 5, at(upto)))
        assert result.failure is not None
        bench.do(ClearSequence(5))
    result = assert_done(bench.do(*operations))
    assert result.held_from[3] == first, "though the first 30 positions are there"
    assert_done(bench.do(ForkSequence(3, 5, at(400))))
    assert bench.do(TruncateSequence(5, at(first + WINDOW - 2))).failure is not None
    assert bench.do(TruncateSequence(5, at(first + WINDOW - 1))).failure is None
    assert bench.do(TruncateSequence(5, at(0))).failure is None
    assert 5 not in bench.context.held_from()
