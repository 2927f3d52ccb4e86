"""What is learned of a drafter's acceptance, per request and position."""

from __future__ import annotations

import random

import pytest

from forerun.core.acceptance import POSITIONS, Acceptance, DrafterRecord, RequestDrafting
from forerun.core.step import Proposal


def test_a_request_learns_its_own_rate_at_each_position() -> None:
    rng = random.Random(1)
    truth = [0.9, 0.5, 0.2]
    acceptance = Acceptance(DrafterRecord())
    for _ in range(3000):
        accepted = next((i for i, rate in enumerate(truth) if rng.random() >= rate), 3)
        acceptance.add(accepted, 3)
    for position, rate in enumerate(truth):
        assert acceptance.rates()[position] == pytest.approx(rate, abs=0.15)


def test_a_new_request_starts_from_what_others_taught() -> None:
    shared = DrafterRecord()
    first = Acceptance(shared)
    for _ in range(200):
        first.add(0, 4)
    assert Acceptance(shared).rates()[0] < 0.05
    assert Acceptance(DrafterRecord(first_guess=0.4)).rates()[0] == 0.4


def test_its_own_record_soon_outweighs_the_others() -> None:
    shared = DrafterRecord()
    others = Acceptance(shared)
    for _ in range(500):
        others.add(0, 1)
    request = Acceptance(shared)
    for _ in range(12):
        request.add(1, 1)
    assert request.rates()[0] > 0.7


def test_a_position_that_was_never_tried_is_expected_to_be_like_the_one_before_it() -> None:
    sure, doubtful = Acceptance(DrafterRecord()), Acceptance(DrafterRecord())
    for _ in range(50):
        sure.add(2, 2)
        doubtful.add(0, 2)
    assert sure.rates()[5] > 0.9
    assert doubtful.rates()[5] < 0.15


def test_positions_after_a_refusal_were_never_tried() -> None:
    acceptance = Acceptance(DrafterRecord())
    for _ in range(50):
        acceptance.add(1, 8)
    assert acceptance.rates()[0] > 0.9
    assert acceptance.rates()[1] < 0.1


def test_nothing_untried_is_taken_for_certain() -> None:
    acceptance = Acceptance(DrafterRecord())
    for _ in range(500):
        acceptance.add(1, 1)
    assert acceptance.rates()[4] <= 0.98


def test_chances_multiply_along_a_block_of_any_length() -> None:
    acceptance = Acceptance(DrafterRecord(first_guess=0.5))
    assert acceptance.chances(3) == [0.5, 0.25, 0.125]
    assert acceptance.chances(0) == []
    assert len(acceptance.chances(POSITIONS + 5)) == POSITIONS + 5


def test_nothing_proposed_teaches_nothing() -> None:
    acceptance = Acceptance(DrafterRecord())
    acceptance.add(0, 0)
    assert acceptance.rates()[0] == 0.5


def test_one_proposal_is_compared_at_a_time() -> None:
    drafting = RequestDrafting()
    drafting.remember("ngram", Proposal((1, 2)), at=5)
    drafting.remember("ngram", Proposal((3, 4)), at=6)
    assert drafting.remembered["ngram"].at == 5
