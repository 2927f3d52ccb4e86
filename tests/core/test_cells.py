"""Cells of one memory, against sets of numbered cells."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forerun.core.cells import CellLedger

SEQUENCES = 5
ids = st.integers(0, SEQUENCES - 1)


class LedgerAgainstSets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = CellLedger(SEQUENCES, capacity=10_000)
        self.rows: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self.numbers = itertools.count()

    @rule(sequence=ids, count=st.integers(-2, 6))
    def append(self, sequence: int, count: int) -> None:
        self.ledger.append(sequence, count)
        self.rows[sequence] += [next(self.numbers) for _ in range(count)]

    @rule(data=st.data(), source=ids)
    @precondition(lambda self: not all(self.rows))
    def fork(self, data: st.DataObject, source: int) -> None:
        target = data.draw(st.sampled_from([i for i, row in enumerate(self.rows) if not row]))
        count = data.draw(st.integers(0, len(self.rows[source])))
        if source != target:
            self.ledger.fork(source, target, count)
            self.rows[target] = self.rows[source][:count]

    @rule(sequence=ids, count=st.integers(0, 12))
    def truncate(self, sequence: int, count: int) -> None:
        self.ledger.truncate(sequence, count)
        del self.rows[sequence][count:]

    @rule(sequence=ids)
    def clear(self, sequence: int) -> None:
        self.ledger.clear(sequence)
        self.rows[sequence] = []

    @rule(sequence=ids, count=st.integers(0, 12))
    def resize(self, sequence: int, count: int) -> None:
        missing = max(0, count - len(self.rows[sequence]))
        self.ledger.resize(sequence, count)
        self.rows[sequence] = self.rows[sequence][:count] + [next(self.numbers) for _ in range(missing)]

    @rule(some=st.lists(ids, unique=True))
    def count_together(self, some: list[int]) -> None:
        assert self.ledger.held_together(some) == len({cell for i in some for cell in self.rows[i]})

    @invariant()
    def a_cell_counts_once_however_many_share_it(self) -> None:
        self.ledger.check_integrity()
        assert [self.ledger.held(i) for i in range(SEQUENCES)] == [len(row) for row in self.rows]
        assert self.ledger.used == len({cell for row in self.rows for cell in row})
        assert self.ledger.free + self.ledger.used == 10_000


TestLedgerAgainstSets = LedgerAgainstSets.TestCase
TestLedgerAgainstSets.settings = settings(max_examples=100, stateful_step_count=40)


def test_a_shared_prefix_outlives_the_sequence_it_came_from() -> None:
    ledger = CellLedger(2, capacity=10)
    ledger.append(0, 10)
    ledger.fork(0, 1, 6)
    assert ledger.used == 10
    ledger.clear(0)
    assert (ledger.used, ledger.held(1)) == (6, 6)
    ledger.clear(1)
    assert ledger.used == 0


def test_a_ledger_without_bound_always_has_room() -> None:
    ledger = CellLedger(1)
    ledger.append(0, 10**9)
    assert ledger.free > 10**9
    assert repr(ledger) == "CellLedger(1000000000 of unbounded used)"
