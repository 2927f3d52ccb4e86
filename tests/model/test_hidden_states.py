"""States are read back at their positions, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llama_cpp")

from forerun.native.hidden_states import HiddenStates, Rows

WIDTH = 2


def rows_of(sequence_id: int, first: int, stop: int) -> Rows:
    """Rows that name their sequence and position, which are never zero."""
    positions = np.arange(first, stop, dtype=np.float32) + 1
    return np.stack([np.full(stop - first, sequence_id + 1, np.float32), positions], axis=1)


def known(states: HiddenStates, sequence_id: int, stop: int = 100) -> list[int]:
    """Positions from -1 on whose states are there; each must be that position's."""
    out = np.full((stop + 1, WIDTH), np.nan, np.float32)
    states.read(sequence_id, -1, out)
    found = [index - 1 for index in range(stop + 1) if out[index].any()]
    assert [out[position + 1, 1] - 1 for position in found] == found
    return found


def test_states_are_read_where_they_were_written_and_zeros_elsewhere() -> None:
    states = HiddenStates(WIDTH, 50)
    states.write(0, 3, rows_of(0, 3, 6))
    states.write(0, 6, rows_of(0, 6, 8))
    assert known(states, 0) == [3, 4, 5, 6, 7]
    assert known(states, 1) == []


def test_writing_again_replaces_everything_behind() -> None:
    states = HiddenStates(WIDTH, 50)
    states.write(0, 0, rows_of(7, 0, 10))
    states.write(0, 4, rows_of(0, 4, 5))
    assert known(states, 0) == [0, 1, 2, 3, 4]
    out = np.empty((1, WIDTH), np.float32)
    states.read(0, 4, out)
    assert out.tolist() == [[1, 5]]


@pytest.mark.parametrize("position", [0, 7])
def test_rows_that_do_not_join_those_before_stand_alone(position: int) -> None:
    states = HiddenStates(WIDTH, 50)
    states.write(0, 2, rows_of(0, 2, 5))
    states.write(0, position, rows_of(0, position, position + 2))
    assert known(states, 0) == [position, position + 1]


def test_a_copy_has_what_lies_before_its_end_and_its_own_life() -> None:
    states = HiddenStates(WIDTH, 50)
    states.write(1, 0, rows_of(1, 0, 9))
    states.write(0, 2, rows_of(0, 2, 8))
    states.copy(0, 1, 5)
    states.write(0, 4, rows_of(0, 4, 5))
    states.write(1, 5, rows_of(1, 5, 7))
    assert (known(states, 0), known(states, 1)) == ([2, 3, 4], [2, 3, 4, 5, 6])
    states.copy(0, 1, 2)
    assert known(states, 1) == []


def test_the_sequences_written_longest_ago_make_room() -> None:
    states = HiddenStates(WIDTH, 10)
    for sequence_id in (0, 1, 2):
        states.write(sequence_id, 0, rows_of(sequence_id, 0, 4))
    assert (known(states, 0), known(states, 1), known(states, 2)) == ([], [0, 1, 2, 3], [0, 1, 2, 3])
    states.write(1, 4, rows_of(1, 4, 16))
    assert (known(states, 1), known(states, 2), len(states)) == (list(range(6, 16)), [], 10)


@given(st.lists(st.tuples(st.sampled_from(["write", "forget", "clear"]), st.integers(0, 30), st.integers(1, 12))))
def test_any_history_reads_like_a_plain_dictionary(history: list[tuple[str, int, int]]) -> None:
    states, model = HiddenStates(WIDTH, 1000), set[int]()
    for action, position, count in history:
        if action == "write":
            joins = model and min(model) <= position <= max(model) + 1
            model = {at for at in model if at < position} if joins else set()
            model |= set(range(position, position + count))
            states.write(0, position, rows_of(0, position, position + count))
        elif action == "forget":
            model = {at for at in model if at >= position}
            states.forget_before(position, 0)
        else:
            model = set()
            states.clear(0)
        assert known(states, 0) == sorted(model)
        assert len(states) == len(model)
