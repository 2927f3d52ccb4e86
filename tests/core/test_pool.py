"""The pool: who gets which sequence, what is reused, what goes; and native memory holds what the ledgers say."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forerun.core.pool import Sequence, SequencePool
from forerun.core.prefix import PromptCheckpoint, PromptCheckpointState, ReusablePrefix
from forerun.core.prompt import PromptBoundary, PromptLayout, PromptSegment, SpeculativePosition
from forerun.core.step import ClearSequence, ForkSequence, KvOperation, MediaRows, TruncateSequence
from forerun.testing import FakeMemory, media_codes, next_digest
from tests.core.strategies import MEDIA, prompts, segment_lists, token_ids


def text(*tokens: int) -> PromptLayout:
    return PromptLayout.of_text(tokens)


def numbered(count: int, start: int = 0) -> PromptLayout:
    return PromptLayout.of_text(range(start, start + count))


def got(sequence: Sequence | None) -> Sequence:
    assert sequence is not None
    return sequence


def cache(pool: SequencePool, layout: PromptLayout) -> int:
    """Makes an idle sequence that holds `layout`; returns its id. Drops the operations this takes."""
    sequence = got(pool.acquire())
    pool.release(sequence, ReusablePrefix(layout))
    pool.take_operations()
    pool.check_integrity()
    return sequence.id


# --- worked cases ----------------------------------------------------------


def test_the_example_of_the_domain_holds() -> None:
    image = PromptSegment.media(identity="image-a", logical_tokens=576, native_positions=1)
    prompt = PromptLayout([PromptSegment.text([1, 2]), image, PromptSegment.text([3])])
    cached = PromptLayout([PromptSegment.text([1, 2]), image, PromptSegment.text([9])])

    shared = cached.common_prefix(prompt)
    reusable = ReusablePrefix(
        layout=cached,
        checkpoints=[PromptCheckpoint(state=PromptCheckpointState.speculative(b"..."), boundary=shared)],
    )

    pool = SequencePool(4)
    sequence = got(pool.acquire())
    pool.release(sequence, reusable)
    again = got(pool.acquire_matching(prompt))
    assert again.id == sequence.id
    assert again.reused == shared == PromptBoundary(578, 3)
    assert again.checkpoint == reusable.checkpoints[0]
    assert pool.take_operations() == (TruncateSequence(sequence.id, SpeculativePosition(target=3, draft=2)),)
    pool.check_integrity()


@pytest.mark.parametrize(("shared", "length", "reuses"), [(1, 10, True), (1, 11, False), (9, 90, True), (9, 91, False)])
def test_a_prefix_is_reused_from_a_tenth_of_the_prompt_on(shared: int, length: int, reuses: bool) -> None:  # noqa: FBT001 - data
    pool = SequencePool(4)
    cache(pool, numbered(shared).extended(numbered(50, start=500).segments))
    sequence = got(pool.acquire_matching(numbered(length)))
    assert sequence.reused.logical_tokens == (shared if reuses else 0)


def test_a_shared_part_that_is_large_in_itself_is_reused_however_long_the_prompt() -> None:
    prompt = numbered(100_000)
    for shared, reused in ((64, 64), (63, 0)):
        pool = SequencePool(4)
        cache(pool, numbered(shared).extended(numbered(50, start=500_000).segments))
        assert got(pool.acquire_matching(prompt)).reused.logical_tokens == reused


def test_both_thresholds_can_be_set() -> None:
    pool = SequencePool(4, min_prefix_similarity=0.5, min_prefix_tokens=5)
    cache(pool, text(1, 2, 3, 4, 9, 9, 9))
    assert got(pool.acquire_matching(text(1, 2, 3, 4, 5, 6, 7, 8, 9))).reused == PromptBoundary.START
    assert got(pool.acquire_matching(text(1, 2, 3, 4, 5, 6, 7, 8))).reused == PromptBoundary(4, 4)


def test_what_is_wholly_contained_in_the_prompt_is_taken_over() -> None:
    pool = SequencePool(4)
    source = cache(pool, text(1, 2, 3))
    sequence = got(pool.acquire_matching(text(1, 2, 3, 4)))
    assert (sequence.id, sequence.reused, sequence.source_id) == (source, PromptBoundary(3, 3), None)
    assert pool.take_operations() == ()
    assert pool.idle_ids == 0


def test_what_goes_on_elsewhere_is_forked_and_stays() -> None:
    pool = SequencePool(4)
    source = cache(pool, text(1, 2, 3, 4, 5))
    sequence = got(pool.acquire_matching(text(1, 2, 3, 9)))
    assert sequence.id != source
    assert (sequence.reused, sequence.source_id) == (PromptBoundary(3, 3), source)
    assert pool.take_operations() == (ForkSequence(source, sequence.id, SpeculativePosition(3, 3)),)
    assert pool.idle[source].layout == text(1, 2, 3, 4, 5)
    assert pool.target_cells.used == 5


@pytest.mark.parametrize("times", range(1, 4))
def test_the_same_prompt_again_evaluates_its_last_token_again(times: int) -> None:
    pool = SequencePool(4)
    source = cache(pool, text(1, 2, 3))
    for _ in range(times):
        sequence = got(pool.acquire_matching(text(1, 2, 3)))
        assert (sequence.id, sequence.reused) == (source, PromptBoundary(2, 2))
        pool.release(sequence, ReusablePrefix(text(1, 2, 3)))
        pool.check_integrity()


def test_a_prompt_of_one_token_twice_starts_from_nothing() -> None:
    pool = SequencePool(2)
    cache(pool, text(1))
    assert got(pool.acquire_matching(text(1))).reused == PromptBoundary.START


def test_a_prompt_that_shares_nothing_takes_an_empty_sequence() -> None:
    pool = SequencePool(2)
    source = cache(pool, numbered(100))
    assert got(pool.acquire_matching(numbered(50, start=500))).id != source
    assert pool.idle_ids == 1


def test_the_deepest_of_several_sources_is_chosen() -> None:
    pool = SequencePool(4)
    cache(pool, text(1, 2, 7, 7))
    deep = cache(pool, text(1, 2, 3, 4, 7, 7))
    cache(pool, text(1, 2, 3, 8, 8))
    match = pool.find(text(1, 2, 3, 4, 5))
    assert match is not None
    assert (match.source_id, match.boundary) == (deep, PromptBoundary(4, 4))


# --- running sources ----------------------------------------------------------


def test_a_running_sequence_is_forked_as_far_as_it_has_computed() -> None:
    pool = SequencePool(4)
    running = got(pool.acquire())
    pool.promise(running, numbered(20))
    pool.target_cells.append(running.id, 12)
    prompt = numbered(15).extended(text(99).segments)
    match = pool.find(prompt)
    assert match is not None
    assert (match.boundary, match.promised) == (PromptBoundary(12, 12), PromptBoundary(15, 15))
    assert match.promised_by == running.id
    forked = got(pool.acquire_matching(prompt))
    assert (forked.source_id, forked.reused) == (running.id, PromptBoundary(12, 12))


def test_what_a_running_sequence_generated_can_be_shared() -> None:
    pool = SequencePool(4)
    running = got(pool.acquire())
    pool.promise(running, text(1, 2))
    pool.extend(running, text(3, 4).text_tokens)
    pool.target_cells.append(running.id, 4)
    assert got(pool.acquire_matching(text(1, 2, 3, 4, 5))).reused == PromptBoundary(4, 4)


def test_an_idle_source_is_preferred_to_a_running_one_as_deep() -> None:
    pool = SequencePool(4)
    running = got(pool.acquire())
    idle = cache(pool, text(1, 2, 3, 4, 5, 6))
    pool.promise(running, text(1, 2, 3, 4, 7))
    pool.target_cells.append(running.id, 4)
    match = pool.find(text(1, 2, 3, 4, 8))
    assert match is not None
    assert match.source_id == idle


def test_without_a_free_id_a_running_source_is_no_source() -> None:
    pool = SequencePool(1)
    running = got(pool.acquire())
    pool.promise(running, text(1, 2, 3))
    pool.target_cells.append(running.id, 3)
    assert pool.acquire_matching(text(1, 2, 3, 4)) is None
    assert pool.acquire() is None


# --- what goes ----------------------------------------------------------


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = SequencePool(3)
    old, middle, new = (cache(pool, numbered(10, start)) for start in (100, 200, 300))
    hit = got(pool.acquire_matching(numbered(5, 100).extended(text(7).segments)))
    assert hit.source_id == old, "a hit makes a prefix recent"
    assert hit.id == middle
    assert pool.take_operations() == (ClearSequence(middle), ForkSequence(old, middle, SpeculativePosition(5, 5)))
    assert list(pool.idle) == [new, old]


def test_the_source_of_a_fork_is_never_evicted_for_it() -> None:
    pool = SequencePool(2)
    source = cache(pool, numbered(10))
    leased = got(pool.acquire())
    taken = got(pool.acquire_matching(numbered(5).extended(text(77).segments)))
    assert (taken.id, taken.reused, taken.source_id) == (source, PromptBoundary(5, 5), None)
    assert leased.id != source
    pool.check_integrity()


def test_a_prefix_contained_in_a_new_one_is_redundant() -> None:
    pool = SequencePool(3)
    short = cache(pool, text(1, 2))
    other = cache(pool, text(1, 3))
    long = cache(pool, text(1, 2, 3))
    assert pool.idle.keys() == {other, long}
    assert short not in pool.idle


def test_a_new_prefix_contained_in_another_is_redundant_itself() -> None:
    pool = SequencePool(3)
    long = cache(pool, text(1, 2, 3))
    cache(pool, text(1, 2))
    assert pool.idle.keys() == {long}


def test_of_equal_prefixes_the_newer_stays() -> None:
    pool = SequencePool(3)
    first, second = got(pool.acquire()), got(pool.acquire())
    pool.release(first, ReusablePrefix(text(1, 2)))
    pool.release(second, ReusablePrefix(text(1, 2)))
    assert pool.idle.keys() == {second.id}


@pytest.mark.parametrize("prefix", [None, ReusablePrefix(PromptLayout())])
def test_a_release_without_content_frees_the_sequence(prefix: ReusablePrefix | None) -> None:
    pool = SequencePool(1)
    sequence = got(pool.acquire())
    pool.target_cells.append(sequence.id, 5)
    pool.release(sequence, prefix)
    assert (pool.free_ids, pool.idle_ids, pool.target_cells.used) == (1, 0, 0)
    assert pool.take_operations() == (ClearSequence(sequence.id),)


def test_a_release_cuts_off_what_does_not_belong_to_the_prefix() -> None:
    pool = SequencePool(1)
    sequence = got(pool.acquire())
    pool.target_cells.append(sequence.id, 5)
    pool.draft_cells.append(sequence.id, 4)
    pool.release(sequence, ReusablePrefix(text(1, 2, 3)))
    assert pool.take_operations() == (TruncateSequence(sequence.id, SpeculativePosition(3, 3)),)
    assert (pool.target_cells.used, pool.draft_cells.used) == (3, 3)


def test_a_lease_ends_once() -> None:
    pool = SequencePool(1)
    first = got(pool.acquire())
    pool.release(first)
    with pytest.raises(ValueError, match="not leased"):
        pool.release(first)
    second = got(pool.acquire())
    for end in (pool.release, pool.quarantine):
        with pytest.raises(ValueError, match="not leased"):
            end(first)
    pool.release(second)


def test_forgetting_reuse_forgets_every_idle_prefix() -> None:
    pool = SequencePool(3)
    cache(pool, text(1, 2, 3))
    cache(pool, text(4, 5, 6))
    pool.invalidate_reuse()
    assert (pool.idle_ids, pool.free_ids, pool.target_cells.used) == (0, 3, 0)
    assert pool.find(text(1, 2, 3)) is None


def test_a_quarantined_id_is_no_source_and_comes_back_cleared() -> None:
    pool = SequencePool(2)
    sequence = got(pool.acquire())
    pool.promise(sequence, text(1, 2))
    pool.target_cells.append(sequence.id, 2)
    idle = cache(pool, text(5, 6))
    pool.quarantine(sequence)
    pool.quarantine_idle(idle)
    pool.quarantine_idle(idle)
    assert pool.find(text(1, 2, 3)) is pool.find(text(5, 6, 7)) is None
    assert pool.acquire() is None
    assert pool.quarantined == {0, 1}
    assert pool.take_operations() == ()
    pool.check_integrity()
    pool.retry_quarantined()
    assert pool.take_operations() == (ClearSequence(0), ClearSequence(1))
    assert (pool.free_ids, pool.target_cells.used) == (2, 0)


# --- making room ----------------------------------------------------------


def test_room_is_made_from_the_least_recent_and_no_more_than_needed() -> None:
    pool = SequencePool(4, cells=30)
    old, middle, new = (cache(pool, numbered(10, start)) for start in (100, 200, 300))
    assert pool.make_room(0)
    assert pool.idle_ids == 3
    assert pool.make_room(11)
    assert pool.idle.keys() == {new}
    assert pool.take_operations() == (ClearSequence(old), ClearSequence(middle))


def test_room_that_leases_take_up_cannot_be_made() -> None:
    pool = SequencePool(3, cells=30)
    leased = got(pool.acquire())
    pool.target_cells.append(leased.id, 15)
    cache(pool, numbered(10))
    assert pool.available_cells - pool.target_cells.free == 10
    assert not pool.make_room(26)
    assert pool.idle_ids == 1, "nothing is evicted in vain"
    assert pool.make_room(15)
    assert pool.idle_ids == 0


def test_cells_shared_with_a_lease_are_not_reclaimable() -> None:
    pool = SequencePool(3, cells=30)
    cache(pool, numbered(10))
    got(pool.acquire_matching(numbered(6).extended(text(77).segments)))
    assert pool.available_cells - pool.target_cells.free == 4


def test_cells_of_a_quarantined_sequence_are_not_reclaimable() -> None:
    pool = SequencePool(3, cells=30)
    sequence = got(pool.acquire())
    pool.target_cells.append(sequence.id, 10)
    pool.quarantine(sequence)
    assert pool.available_cells == pool.target_cells.free == 20
    assert not pool.make_room(21)


def test_a_draft_that_ran_ahead_is_cut_back_with_the_target() -> None:
    pool = SequencePool(2, draft_cells=30)
    sequence = got(pool.acquire())
    pool.target_cells.append(sequence.id, 3)
    pool.draft_cells.append(sequence.id, 4)
    pool.release(sequence, ReusablePrefix(text(1, 2, 3)))
    assert pool.take_operations() == (TruncateSequence(sequence.id, SpeculativePosition(3, 3)),)
    assert pool.draft_cells.held(sequence.id) == 3


def test_forgetting_a_draft_leaves_the_target_s_media_alone() -> None:
    pool = SequencePool(2, cells=30, draft_cells=2)
    sequence = got(pool.acquire())
    pool.draft_cells.append(sequence.id, 2)
    pool.release(sequence, ReusablePrefix(PromptLayout([PromptSegment.text([1, 2]), MEDIA[0]])))
    assert pool.make_draft_room(2)
    assert pool.take_operations() == (TruncateSequence(sequence.id, SpeculativePosition(target=3, draft=0)),)
    assert pool.target_cells.held(sequence.id) == 5


def test_draft_room_costs_no_target_prefix() -> None:
    pool = SequencePool(3, cells=30, draft_cells=10)
    for start in (100, 200):
        sequence = got(pool.acquire())
        pool.target_cells.append(sequence.id, 5)
        pool.draft_cells.append(sequence.id, 4)
        pool.release(sequence, ReusablePrefix(numbered(5, start)))
    assert pool.make_draft_room(2)
    assert pool.take_operations() == ()
    assert pool.make_draft_room(5)
    assert pool.take_operations() == (TruncateSequence(0, SpeculativePosition(target=5, draft=0)),)
    assert (pool.draft_cells.held(0), pool.draft_cells.held(1), pool.target_cells.used) == (0, 4, 10)
    assert not pool.make_draft_room(11)
    assert pool.make_draft_room(10)
    pool.check_integrity()


def test_a_pool_prints() -> None:
    pool = SequencePool(3)
    cache(pool, text(1, 2))
    pool.acquire()
    assert repr(pool) == "SequencePool(3 ids: 1 free, 1 leased, 1 idle, 0 quarantined; 2 cells)"


def test_a_pool_without_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SequencePool(0)


# --- any order of events, against native memory ----------------------------------------------------------

CELLS, DRAFT_CELLS, IDS = 30, 20, 4


def append_to(memory: FakeMemory, sequence_id: int, segments: list[PromptSegment]) -> None:
    for segment in segments:
        position = memory.next_position(sequence_id)
        if segment.is_media:
            rows = MediaRows(sequence_id, segment, position, 0, segment.logical_tokens)
            memory.append_media(sequence_id, media_codes(segment), rows)
        else:
            memory.append(sequence_id, segment.tokens.tolist(), position)


def digest_of(layout: PromptLayout) -> int:
    """What the digest of a memory must be that holds `layout` and nothing else."""
    digest = position = 0
    for segment in layout.segments:
        codes = media_codes(segment) if segment.is_media else segment.tokens.tolist()
        for index, code in enumerate(codes):
            digest = next_digest(digest, code, position + min(index, segment.native_positions - 1))
        position += segment.native_positions
    return digest


class PoolAgainstMemory(RuleBasedStateMachine):
    """Plays the scheduler: computes prompts bit by bit in both memories, ends them in any way, makes room."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SequencePool(IDS, cells=CELLS, draft_cells=DRAFT_CELLS, min_prefix_tokens=3)
        self.target, self.draft = FakeMemory(CELLS * 2), FakeMemory(DRAFT_CELLS * 2)
        self.leased: dict[int, Sequence] = {}
        self.layouts: dict[int, PromptLayout] = {}
        self.stale: set[int] = set()
        """Leased when reuse was forgotten: never a source again."""
        """What each leased sequence is going to hold."""
        self.seen: list[PromptLayout] = [PromptLayout()]

    def apply(self) -> None:
        for operation in self.pool.take_operations():
            self.apply_one(operation)

    def apply_one(self, operation: KvOperation) -> None:
        match operation:
            case ClearSequence(sequence_id):
                self.target.clear(sequence_id)
                self.draft.clear(sequence_id)
            case TruncateSequence(sequence_id, position):
                self.target.truncate(sequence_id, position.target)
                self.draft.truncate(sequence_id, position.draft)
            case ForkSequence(source_id, target_id, position):
                self.target.fork(source_id, target_id, position.target)
                self.draft.fork(source_id, target_id, position.draft)

    def some_lease(self, data: st.DataObject) -> Sequence:
        return self.leased[data.draw(st.sampled_from(sorted(self.leased)))]

    @rule(prompt=prompts)
    def start(self, prompt: PromptLayout) -> None:
        sources = {**{i: prefix.layout for i, prefix in self.pool.idle.items()}, **self.layouts}
        room = self.pool.free_ids + self.pool.idle_ids
        sequence = self.pool.acquire_matching(prompt)
        assert (sequence is None) <= (room == 0 or not self.pool.idle_ids)
        if sequence is None:
            return
        reused = sequence.reused
        assert reused == PromptBoundary.START or any(
            layout.common_prefix(prompt).logical_tokens >= reused.logical_tokens for layout in sources.values()
        )
        assert prompt.boundary_at(reused.logical_tokens) == reused
        assert reused.logical_tokens < prompt.logical_tokens, "something is left to evaluate"
        assert self.pool.target_cells.held(sequence.id) == reused.logical_tokens
        self.leased[sequence.id] = sequence
        self.layouts[sequence.id] = prompt
        self.seen.append(prompt)
        self.pool.promise(sequence, prompt)

    @rule(data=st.data(), tail=segment_lists)
    def start_from_what_was_seen(self, data: st.DataObject, tail: list[PromptSegment]) -> None:
        before = data.draw(st.sampled_from(self.seen))
        cut = before.boundary_at_or_after(data.draw(st.integers(0, before.logical_tokens)))
        assert cut is not None
        prompt = before.prefix(cut).extended(tail)
        if prompt.logical_tokens:
            self.start(prompt)

    @rule(data=st.data(), wanted=st.integers(1, 8))
    @precondition(lambda self: self.leased)
    def compute(self, data: st.DataObject, wanted: int) -> None:
        sequence = self.some_lease(data)
        layout, held = self.layouts[sequence.id], self.pool.target_cells.held(sequence.id)
        end = layout.boundary_at_or_after(min(held + wanted, layout.logical_tokens))
        assert end is not None
        rows = end.logical_tokens - held
        if not rows:
            return
        reclaimable = self.pool.available_cells
        has_room = self.pool.make_room(rows)
        assert has_room == (rows <= reclaimable)
        self.apply()
        if has_room:
            self.pool.target_cells.append(sequence.id, rows)
            append_to(self.target, sequence.id, layout.slice_segments(held, end.logical_tokens))

    @rule(data=st.data(), tokens=st.lists(token_ids, min_size=1, max_size=4))
    @precondition(lambda self: self.leased)
    def generate(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence = self.some_lease(data)
        segment = PromptSegment.text(tokens)
        self.pool.extend(sequence, segment.tokens)
        self.layouts[sequence.id] = self.layouts[sequence.id].extended([segment])

    @rule(data=st.data(), wanted=st.integers(1, 6))
    @precondition(lambda self: self.leased)
    def fill_the_draft(self, data: st.DataObject, wanted: int) -> None:
        sequence = self.some_lease(data)
        layout, held = self.layouts[sequence.id], self.pool.draft_cells.held(sequence.id)
        end = self.pool.target_cells.held(sequence.id) + 1  # drafting evaluates the pending token too
        text_left = layout.text_tokens_at(held)[: max(0, end - held)][:wanted]
        if text_left.size and self.pool.make_draft_room(text_left.size):
            self.apply()
            self.draft.append(sequence.id, text_left.tolist(), held)
            self.pool.draft_cells.append(sequence.id, text_left.size)

    @rule(data=st.data(), keep=st.sampled_from(["all", "some", "none"]))
    @precondition(lambda self: self.leased)
    def finish(self, data: st.DataObject, keep: str) -> None:
        sequence = self.some_lease(data)
        held = self.pool.target_cells.held(sequence.id)
        layout = self.layouts[sequence.id]
        cut = data.draw(st.integers(0, held)) if keep == "some" else held
        boundary = layout.boundary_at_or_before(cut)
        assert boundary is not None
        prefix = layout.prefix(boundary)
        self.pool.release(sequence, None if keep == "none" else ReusablePrefix(prefix))
        was_stale = sequence.id in self.stale
        self.forget(sequence)
        assert not (was_stale and sequence.id in self.pool.idle)
        if keep != "none" and boundary.logical_tokens and not was_stale:
            held_idle = [idle.layout.common_prefix(prefix) for idle in self.pool.idle.values()]
            assert prefix.end in held_idle, "what was released can be found again"

    def forget(self, sequence: Sequence) -> None:
        del self.leased[sequence.id], self.layouts[sequence.id]
        self.stale.discard(sequence.id)

    @rule(data=st.data(), garbage=st.booleans())
    @precondition(lambda self: self.leased)
    def fail(self, data: st.DataObject, garbage: bool) -> None:  # noqa: FBT001 - drawn
        sequence = self.some_lease(data)
        self.apply()
        if garbage and self.target.used < self.target.capacity:
            self.target.append(sequence.id, [99], self.target.next_position(sequence.id))
        self.pool.quarantine(sequence)
        self.forget(sequence)

    @rule(data=st.data())
    @precondition(lambda self: self.pool.idle_ids)
    def fail_an_idle_one(self, data: st.DataObject) -> None:
        self.pool.quarantine_idle(data.draw(st.sampled_from(sorted(self.pool.idle))))

    @rule()
    def retry_quarantined(self) -> None:
        self.pool.retry_quarantined()

    @rule(cells=st.integers(0, CELLS))
    def make_room(self, cells: int) -> None:
        before = self.pool.idle.keys()
        if self.pool.make_room(cells):
            assert self.pool.target_cells.free >= cells
        else:
            assert self.pool.idle.keys() == before

    @rule(cells=st.integers(0, DRAFT_CELLS))
    def make_draft_room(self, cells: int) -> None:
        before = self.pool.idle
        assert self.pool.make_draft_room(cells) == (self.pool.draft_cells.free >= cells)
        assert self.pool.idle == before

    @rule()
    def forget_reuse(self) -> None:
        self.pool.invalidate_reuse()
        self.stale |= self.leased.keys()
        assert not self.pool.idle_ids

    @invariant()
    def after_the_operations_all_agrees(self) -> None:
        self.apply()
        self.pool.check_integrity()
        self.memory_is_what_the_ledgers_say()
        self.memory_holds_the_content_promised()
        self.lookups_find_the_deepest_source()

    def memory_is_what_the_ledgers_say(self) -> None:
        unknown = self.pool.quarantined
        for sequence_id in {*range(IDS)} - unknown:
            assert self.target.held(sequence_id) == self.pool.target_cells.held(sequence_id)
            assert self.draft.held(sequence_id) == self.pool.draft_cells.held(sequence_id)
        if not unknown:
            assert self.target.used == self.pool.target_cells.used
            assert self.draft.used == self.pool.draft_cells.used

    def memory_holds_the_content_promised(self) -> None:
        known = {**{i: prefix.layout for i, prefix in self.pool.idle.items()}, **self.layouts}
        for sequence_id, layout in known.items():
            boundary = layout.boundary_at(self.target.held(sequence_id))
            assert boundary is not None, "cut inside media"
            assert self.target.next_position(sequence_id) == boundary.native_position
            assert self.target.digest(sequence_id) == digest_of(layout.prefix(boundary))
            drafted = layout.text_tokens_at(0)[: self.draft.held(sequence_id)]
            assert self.draft.digest(sequence_id) == digest_of(PromptLayout.of_text(drafted))

    def lookups_find_the_deepest_source(self) -> None:
        for prompt in self.seen[-2:]:
            running = {key: layout for key, layout in self.layouts.items() if key not in self.stale}
            known = {**{i: prefix.layout for i, prefix in self.pool.idle.items()}, **running}
            deepest = 0
            for sequence_id, layout in known.items():
                shared = layout.common_prefix(prompt).logical_tokens
                deepest = max(deepest, min(shared, self.target.held(sequence_id)))
            match = self.pool.find(prompt)
            found = match.boundary.logical_tokens if match else 0
            last = prompt.boundary_at_or_before(max(prompt.logical_tokens - 1, 0))
            assert last is not None
            assert found == min(deepest, last.logical_tokens)

    def teardown(self) -> None:
        for sequence in [*self.leased.values()]:
            self.pool.release(sequence)
        self.pool.invalidate_reuse()
        self.pool.retry_quarantined()
        self.apply()
        self.pool.check_integrity()
        assert (self.pool.free_ids, self.target.used, self.draft.used) == (IDS, 0, 0), "something leaked"


TestPoolAgainstMemory = PoolAgainstMemory.TestCase
TestPoolAgainstMemory.settings = settings(max_examples=60, stateful_step_count=40)
