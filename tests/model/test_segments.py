"""KV leaves both memories in segments and comes back: what follows is what would have followed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from forerun.core.prefix import PromptCheckpointState
from forerun.core.segment import SEGMENT_TOKENS, StoreEventKind
from forerun.core.step import (
    ClearSequence,
    DropSegment,
    FailureKind,
    FetchSegment,
    ForkSequence,
    KvOperation,
    PersistSegment,
    RemoveSegment,
    RestoreSegment,
    StepPlan,
    StoreSegment,
    TruncateSequence,
)
from forerun.engine_config import EngineConfig
from forerun.native.batch import Batch
from forerun.native.runner import LlamaRunner
from forerun.native.segment_sizes import measured_sizes
from tests.model.driving import DrivenRequest, at, random_tokens
from tests.model.segment_bench import (
    HEADS,
    IDS,
    RECIPES,
    assert_alike,
    assert_done,
    headers,
    restores,
    stores,
)

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        *[pytest.param("smollm2", kv, marks=pytest.mark.slow) for kv in ("f16", "q8_0")],
        ("dense", "f16"),
        ("dense", "q8_0"),
        ("sliding window", "f16"),
    ],
)
def test_what_was_stored_and_restored_goes_on_bit_by_bit_the_same(
    name: str, kv: str, request: pytest.FixtureRequest, load: Any, make_bench: Any
) -> None:
    model = request.getfixturevalue("smollm2") if name == "smollm2" else load(RECIPES[name])
    tokens = random_tokens(700)
    bench = make_bench(model, n_ctx=1024, kv=kv)
    bench.feed(0, tokens)
    for cuts in ((512, 700), (1, 300, 301, 700), (63, 130, 700)):
        segments = headers(tokens, cuts)
        result = assert_done(bench.do(*stores(0, segments)))
        assert result.times.storing > 0
        assert result.stored == {header.key: len(bench.store.get(header.key).state) for header in segments}
        expected = bench.next_logits(0, tokens)
        assert_done(bench.do(ClearSequence(0)))
        result = assert_done(bench.do(*restores(0, segments)))
        assert result.times.restoring > 0
        assert bench.held(0) == (700, 0)
        np.testing.assert_array_equal(bench.next_logits(0, tokens), expected)
        assert bench.do(TruncateSequence(0, at(700))).failure is None


@pytest.mark.parametrize("name", ["hybrid", "recurrent"])
def test_a_state_is_that_of_the_last_segment_restored(name: str, load: Any, make_bench: Any) -> None:
    """Each segment is stored when the sequence ends with it."""
    tokens, cuts = random_tokens(1300), (512, 700, 1300)
    bench = make_bench(load(RECIPES[name]))
    segments = headers(tokens, cuts)
    expected = []
    for header in segments:
        stop = header.stop.native_position
        bench.feed(0, tokens[:stop], start=header.start.native_position)
        assert_done(bench.do(StoreSegment(0, header)))
        assert_done(bench.do(*restores(1, segments, upto=stop)))
        expected.append(bench.next_logits(1, tokens[:stop]))
        assert_done(bench.do(ClearSequence(1)))
    assert_done(bench.do(ClearSequence(0)))
    for count, header in enumerate(segments, 1):
        stop = header.stop.native_position
        assert_done(bench.do(*restores(2, segments[:count])))
        assert bench.held(2) == (stop, 0)
        plain = make_bench(load(RECIPES[name]))
        for start, end in pairwise([0, *cuts[:count]]):
            plain.feed(0, tokens[:end], start=start)
        restored, uninterrupted = bench.next_logits(2, tokens[:stop]), plain.next_logits(0, tokens[:stop])
        np.testing.assert_array_equal(restored, uninterrupted)
        assert_alike(expected[count - 1], uninterrupted)
        assert_done(bench.do(ClearSequence(2)))


# --- cuts, splices and forks ---


def test_two_texts_that_part_inside_a_segment_share_what_is_before(load: Any, make_bench: Any) -> None:
    """[0, 512) whole, [512, 700) of the next one, then one that starts at 700; then a fork of that, cut once more."""
    for recipe in (RECIPES["dense"], RECIPES["sliding window"]):
        bench = make_bench(load(recipe))
        tokens = random_tokens(1100)
        other = np.concatenate([tokens[:700], random_tokens(333, seed=5)])
        last = bench.feed(0, other)
        expected = bench.next_logits(0, other)
        bench.do(ClearSequence(0))
        bench.feed(1, tokens)
        bench.feed(2, other)
        first, second = headers(tokens, (512, 1100)), headers(other, (700, 1033))
        assert_done(bench.do(*stores(1, first), StoreSegment(2, second[1])))
        assert_done(bench.do(ClearSequence(1), ClearSequence(2)))
        assert_done(bench.do(*restores(3, first, upto=700), RestoreSegment(3, second[1].key, at(700), at(1033))))
        assert_alike(bench.next_logits(3, other), expected)
        assert_done(bench.do(TruncateSequence(3, at(650)), ForkSequence(3, 4, at(650))))
        assert bench.held(4) == (650, 0)
        assert_alike(bench.feed(4, other, start=650), last)


def test_a_fork_goes_on_with_segments_of_its_own(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]))
    tokens = random_tokens(900)
    bench.feed(0, tokens)
    expected = bench.next_logits(0, tokens)
    bench.do(TruncateSequence(0, at(900)))
    segments = headers(tokens, (300, 900))
    assert_done(bench.do(*stores(0, segments), TruncateSequence(0, at(300)), ForkSequence(0, 1, at(300))))
    assert_done(bench.do(RestoreSegment(1, segments[1].key, at(300), at(900))))
    assert (bench.held(0), bench.held(1)) == ((300, 0), (900, 0))
    np.testing.assert_array_equal(bench.next_logits(1, tokens), expected)


@pytest.mark.parametrize("kind", RECIPES)
def test_several_sequences_get_the_same_segment_while_another_one_decodes(
    kind: str, load: Any, make_bench: Any
) -> None:
    bench = make_bench(load(RECIPES[kind]))
    tokens, running = random_tokens(300), DrivenRequest(bench.runner, 5, random_tokens(50, seed=1))
    bench.feed(0, tokens)
    (segment,) = headers(tokens, (300,))
    assert_done(bench.do(StoreSegment(0, segment)))
    expected = bench.next_logits(0, tokens)
    bench.do(ClearSequence(0))
    alone = DrivenRequest(bench.runner, 6, random_tokens(50, seed=1))
    for request in (running, alone):
        request.prefill()
    for _ in range(8):
        alone.decode()
    for sequence_id in range(4):
        plan = StepPlan(0.0, tuple(restores(sequence_id, [segment])), decode=(running.decode_row(),))
        running.commit(assert_done(bench.runner.execute(plan)))
        running.decode()
    assert running.output == alone.output
    for sequence_id in range(4):
        assert_alike(bench.next_logits(sequence_id, tokens), expected)


# --- what can go wrong ---


def test_a_store_that_refuses_costs_the_copy_only(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]))
    tokens = random_tokens(100)
    bench.feed(0, tokens)
    (segment, *_) = headers(tokens, (100,))
    bench.store.is_full = True
    result = bench.do(StoreSegment(0, segment))
    assert (result.failure, result.stored) == (None, {segment.key: 0})
    assert bench.held(0) == (100, 0)


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_a_run_that_is_not_there_is_not_stored(kind: str, load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES[kind]))
    tokens = random_tokens(100)
    bench.feed(0, tokens[:50])
    (segment,) = headers(tokens, (100,))
    result = bench.do(StoreSegment(0, segment), StoreSegment(1, segment))
    assert (result.failure, result.stored) == (None, {segment.key: 0})
    bench.feed(0, tokens, start=50)
    (short,) = headers(tokens, (70,))
    result = bench.do(StoreSegment(0, short))
    assert bool(result.stored[short.key]) == (kind == "dense"), "a state is known at its end alone"


def test_a_segment_that_cannot_be_restored_is_named_and_leaves_nothing(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]))
    tokens = random_tokens(400)
    bench.feed(0, tokens)
    segments = headers(tokens, (200, 400))
    assert_done(bench.do(*stores(0, segments)))
    broken = [b"", bytes(bench.store.get(segments[1].key).state)[:-1], b"frs1" + bytes(200), bytes(1000)]
    for state in broken:
        bench.store.states[segments[1].key] = PromptCheckpointState.target(state)
        result = bench.do(*restores(1, segments), StoreSegment(0, segments[0]))
        assert result.failure is not None
        assert result.failure.kind is FailureKind.FAILED
        assert result.unrestorable == (segments[1].key,)
        assert result.stored[segments[0].key], "what a failed step stored is stored"
        assert bench.held(1) == (0, 0)
    assert_done(bench.do(DropSegment(segments[1].key)))
    result = bench.do(*restores(1, segments))
    assert result.unrestorable == (segments[1].key,)
    assert bench.held(0) == (400, 0)


def test_a_segment_goes_only_behind_what_is_there(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]))
    tokens = random_tokens(400)
    bench.feed(0, tokens)
    segments = headers(tokens, (200, 400))
    assert_done(bench.do(*stores(0, segments)))
    bench.feed(1, tokens[:199])
    result = bench.do(*restores(1, segments[1:]))
    assert result.failure is not None
    assert "holds 199 positions, a segment from 200 on" in result.failure.message
    assert not result.unrestorable
    assert bench.held(1) == (0, 0)


@pytest.mark.parametrize("kind", ["dense", "sliding window", "hybrid"])
def test_a_pool_that_is_full_takes_nothing_and_keeps_what_it_has(kind: str, load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES[kind]), n_ctx=512)
    tokens = random_tokens(300)
    bench.feed(0, tokens)
    (segment,) = headers(tokens, (300,))
    assert_done(bench.do(StoreSegment(0, segment)))
    result = bench.do(*restores(1, [segment]))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.NO_ROOM
    assert not result.unrestorable, "the segment is good"
    assert (bench.held(0), bench.held(1)) == ((300, 0), (0, 0))
    bench.feed(1, tokens[:212])
    assert bench.held(0) == (300, 0)


def test_a_part_takes_the_room_of_its_segment_for_a_moment(load: Any, make_bench: Any) -> None:
    """An engine's contexts have `EngineConfig.scratch_cells` for that."""
    bench = make_bench(load(RECIPES["dense"]), n_ctx=512)
    tokens = random_tokens(400)
    bench.feed(0, tokens)
    segments = headers(tokens, (400,))
    assert_done(bench.do(*stores(0, segments), ClearSequence(0)))
    bench.feed(1, random_tokens(112, seed=1))
    assert_done(bench.do(*restores(2, segments, upto=300)))
    assert_done(bench.do(ClearSequence(2)))
    bench.feed(1, random_tokens(113, seed=1), start=112)
    result = bench.do(*restores(2, segments, upto=300))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.NO_ROOM
    assert EngineConfig(model="m").scratch_cells >= SEGMENT_TOKENS
    assert EngineConfig(model="m", cache_ram=0).scratch_cells == 0


def test_free_cells_need_not_lie_in_one_piece(load: Any, make_bench: Any) -> None:
    """llama.cpp scatters a state over whatever is free."""
    bench = make_bench(load(RECIPES["dense"]), n_ctx=512)
    tokens = random_tokens(250)
    bench.feed(0, tokens)
    expected = bench.next_logits(0, tokens)
    bench.do(TruncateSequence(0, at(250)))
    (segment,) = headers(tokens, (250,))
    assert_done(bench.do(StoreSegment(0, segment), ClearSequence(0)))
    for index in range(512):  # every second cell is somebody else's
        batch = Batch(1)
        batch.add_row(5, index // 2, 1 + index % 2)
        bench.context.decode(batch)
    assert_done(bench.do(ClearSequence(1), *restores(3, [segment])))
    assert bench.held(3) == (250, 0)
    assert_alike(bench.next_logits(3, tokens), expected)


@pytest.mark.parametrize("kind", RECIPES)
def test_no_cell_is_lost_over_200_rounds(kind: str, load: Any, make_bench: Any) -> None:
    """Every cell can be filled afterwards."""
    random, bench = np.random.default_rng(3), make_bench(load(RECIPES[kind]), load(RECIPES[kind]), n_ctx=512)
    texts = {sequence_id: random_tokens(200, seed=sequence_id) for sequence_id in range(2)}
    for _ in range(200):
        sequence_id, length = int(random.integers(2)), int(random.integers(1, 200))
        text = texts[sequence_id]
        segments = headers(text, sorted({length, 200}), draft_stop=200)
        bench.feed(sequence_id, text[:length])
        operations: list[KvOperation] = [*stores(sequence_id, segments[:1]), ClearSequence(sequence_id)]
        operations += restores(sequence_id + 2, segments[:1]) + restores(sequence_id + 4, segments[:1])
        assert_done(bench.do(*operations))
        assert bench.held(sequence_id + 2) == (length, length)
        if random.random() < 0.5:
            bench.do(*restores(6, [segments[-1]]))  # fails: nothing is there
        assert_done(bench.do(*map(ClearSequence, range(7))))
    for context in (bench.context, bench.drafter.context):
        assert [context.pos_max(sequence_id) for sequence_id in range(IDS)] == [-1] * IDS
    bench.feed(0, random_tokens(512), chunk=256)
    assert bench.held(0) == (512, 512)


def test_other_operations_of_the_store_are_passed_on_and_their_events_come_back(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]))
    tokens = random_tokens(100)
    bench.feed(0, tokens)
    (segment,) = headers(tokens, (100,))
    key = segment.key
    result = assert_done(bench.do(StoreSegment(0, segment), PersistSegment(key), DropSegment(key)))
    assert [(event.kind, event.key) for event in result.store_events] == [(StoreEventKind.PERSISTED, key)]
    plan = StepPlan(0.0, (FetchSegment(key), RemoveSegment(key)), waits_for_store=True)
    result = assert_done(bench.runner.execute(plan))
    assert [event.kind for event in result.store_events] == [StoreEventKind.FETCHED]
    assert (bench.store.waited, bench.store.disk) == ([0.05], {})
    assert_done(bench.do(*restores(1, [segment])))


def test_without_a_store_no_plan_moves_segments(load: Any, make_bench: Any) -> None:
    bench = make_bench(load(RECIPES["dense"]))
    with pytest.raises(ValueError, match="there is no store"):
        LlamaRunner(bench.context).execute(StepPlan(0.0, (DropSegment("a"),)))


@pytest.mark.parametrize("drafting", ["target", "with draft"])
@pytest.mark.parametrize("kind", [*RECIPES, *HEADS])
def test_the_bytes_of_a_segment_are_known_before_there_is_one(
    kind: str, drafting: str, load: Any, make_bench: Any
) -> None:
    with_mtp, has_draft = kind in HEADS, drafting == "with draft"
    draft = load(replace(RECIPES["dense"], seed=1)) if has_draft and not with_mtp else None
    bench = make_bench(load((RECIPES | HEADS)[kind], with_mtp=with_mtp), draft, mtp=with_mtp and has_draft, n_ctx=2048)
    sizes = measured_sizes(bench.context, bench.drafter)
    contexts = [bench.context, *([bench.drafter.context] if bench.drafter else [])]
    assert all(context.pos_max(sequence_id) == -1 for context in contexts for sequence_id in range(IDS))
    tokens = random_tokens(600)
    for index, cut in enumerate((1, 512, 600)):
        bench.feed(index, tokens[:cut])
        segment = headers(tokens, (cut,), draft_stop=cut)[0] if cut < 600 else headers(tokens, (100, 600), 600)[1]
        drafted = segment.draft_stop - segment.start.logical_tokens
        (stored,) = assert_done(bench.do(StoreSegment(index, segment), ClearSequence(index))).stored.values()
        predicted = sizes.predict(segment.tokens, drafted if has_draft else 0)
        if kind in ("dense", "hybrid", "recurrent"):
            assert stored == predicted
        else:  # pieces of a window, and hidden states that are not known
            assert 0 <= predicted - stored < 20_000
