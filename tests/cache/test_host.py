"""Host memory counts every byte of a segment, and never holds more than its budget."""

from __future__ import annotations

import random

import numpy as np

from forerun.cache.host import SEGMENT_OVERHEAD, HostSegment, HostTier
from forerun.core.prefix import PromptCheckpointState
from tests.cache.support import state_of, text_header


def segment(token: int, size: int) -> HostSegment:
    header = text_header([token])
    return HostSegment(header, state_of(header, size))


def test_the_budget_is_kept_to_the_byte() -> None:
    tier = HostTier(2 * SEGMENT_OVERHEAD + 300)
    assert tier.put(segment(1, 200)) == SEGMENT_OVERHEAD + 200
    assert tier.put(segment(2, 101)) == 0
    assert tier.put(segment(2, 100)) == SEGMENT_OVERHEAD + 100
    assert tier.used == tier.budget
    assert repr(tier) == f"HostTier(2 segments, {tier.budget} of {tier.budget} bytes)"


def test_a_budget_of_zero_holds_nothing() -> None:
    assert HostTier(0).put(segment(1, 0)) == 0


def test_a_segment_takes_the_place_of_one_with_its_key_or_nothing_changes() -> None:
    tier = HostTier(SEGMENT_OVERHEAD + 100)
    tier.put(segment(1, 100))
    assert tier.put(segment(1, 101)) == 0
    assert tier.used == SEGMENT_OVERHEAD + 100
    assert tier.put(segment(1, 50)) == SEGMENT_OVERHEAD + 50
    assert len(tier) == 1
    tier.check_integrity()


def test_any_buffer_is_kept_without_a_copy_and_counted_in_bytes() -> None:
    array = np.arange(100, dtype=np.float32)
    header = text_header([1])
    tier = HostTier(10**6)
    state = PromptCheckpointState.target(array.data)
    assert tier.put(HostSegment(header, state)) == SEGMENT_OVERHEAD + 400
    held = tier.find(header.key)
    assert held is not None
    assert np.shares_memory(np.asarray(held.state.state), array)


def test_promised_room_is_taken() -> None:
    tier = HostTier(2 * SEGMENT_OVERHEAD)
    assert tier.reserve(SEGMENT_OVERHEAD + 1)
    assert not tier.reserve(SEGMENT_OVERHEAD)
    assert tier.put(segment(1, 0)) == 0
    tier.release(SEGMENT_OVERHEAD + 1)
    assert tier.put(segment(1, 0)) == SEGMENT_OVERHEAD


def test_random_puts_and_drops_keep_the_books_right() -> None:
    chance = random.Random(0)
    tier = HostTier(40 * SEGMENT_OVERHEAD)
    for _ in range(2000):
        one = segment(chance.randrange(60), chance.randrange(3 * SEGMENT_OVERHEAD))
        if chance.random() < 0.6:
            tier.put(one)
        else:
            tier.drop(one.header.key)
        tier.check_integrity()
