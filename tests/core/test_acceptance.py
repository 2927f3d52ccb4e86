"""What is learned of a drafter's acceptance, per request and position."""

from __future__ import annotations

import random

import pytest

from forerun.core.acceptance import POSITIONS, Acceptance, DrafterRecord, shared_beginning


def test_a_request_learns_its_own_rate_at_each_position() -> None:
    rng = random.Random(1)
    truth = [0.9, 0.5, 0.2]
    acceptance = Acceptance(DrafterRecord())
    for _ in range(3000):
        accepted = next((i for i, rate in enumerate(truth) if rng.random() >= rate), 3)
        acceptance.add(accepted, 3)
    for position, rate in enumerate(truth):
        assert acceptance.rate(position) == pytest.approx(rate, abs=0.15)


def test_a_new_request_starts_from_what_others_taught() -> None:
    shared = DrafterRecord()
    first = Acceptance(shared)
    for _ in range(200):
        first.add(0, 4)
    assert Acceptance(shared).rate(0) < 0.05
    assert Acceptance(DrafterRecord()).rate(0) == 0.5


def test_its_own_record_soon_outweighs_the_others() -> None:
    shared = DrafterRecord()
    for _ in range(500):
        shared.add(0, 1)
    request = Acceptance(shared)
    for _ in range(12):
        request.add(1, 1)
    assert request.rate(0) > 0.7


def test_positions_after_a_refusal_were_never_tried() -> None:
    acceptance = Acceptance(DrafterRecord())
    for _ in range(50):
        acceptance.add(1, 8)
    assert acceptance.rate(0) > 0.9
    assert acceptance.rate(1) < 0.1
    assert acceptance.rate(2) == 0.5, "nothing is known of it"


def test_chances_multiply_along_a_block_of_any_length() -> None:
    acceptance = Acceptance(DrafterRecord(first_guess=0.5))
    assert acceptance.chances(3) == [0.5, 0.25, 0.125]
    assert acceptance.chances(0) == []
    assert len(acceptance.chances(POSITIONS + 5)) == POSITIONS + 5


def test_nothing_proposed_teaches_nothing() -> None:
    acceptance = Acceptance(DrafterRecord())
    acceptance.add(0, 0)
    assert acceptance.rate(0) == 0.5


def test_a_proposal_is_compared_with_what_came() -> None:
    assert shared_beginning((1, 2, 3), (1, 2, 4)) == 2
    assert shared_beginning((1, 2, 3), (1, 2)) == 2
    assert shared_beginning((), (1,)) == 0
