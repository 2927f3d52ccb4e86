"""A deterministic model with real KV semantics, and the naive oracle to compare any schedule with.

FakeRunner keeps cells the way llama.cpp does: positions in a sequence are consecutive, forks share cells, room is
finite, a failed decode leaves garbage behind. What it says next is a hash of the very cells a sequence holds, so any
fault in the bookkeeping (a stale cell, a wrong position, a missing token) changes the answer, and there is no rounding:
answers must be equal to the oracle's, always.

    scheduler = Scheduler(SchedulerConfig(n_ctx=64, max_num_seqs=4), vocabulary := FakeVocabulary())
    runner = FakeRunner(n_ctx=64)
    scheduler.add(request)
    while scheduler.has_work:
        plan = scheduler.schedule(now=0.0)
        for delta in scheduler.update(plan, runner.execute(plan)):
            ...
"""

from forerun.testing.clock import ManualClock
from forerun.testing.constraint import FakeConstraint
from forerun.testing.drafter import FakeDrafter
from forerun.testing.encoder import FakeEncoder
from forerun.testing.faults import Fault, SeededFaults
from forerun.testing.faulty_runner import FaultyRunner
from forerun.testing.media import FakeMediaReader
from forerun.testing.memory import FakeMemory, FakeMemoryError
from forerun.testing.model import FakeVocabulary, adapted, fake_logits, media_codes, next_digest
from forerun.testing.oracle import Answer, naive_answer
from forerun.testing.runner import FakeRunner, FaultSchedule
from forerun.testing.store import FAKE_SIZES, FakeStore

__all__ = [
    "FAKE_SIZES",
    "Answer",
    "FakeConstraint",
    "FakeDrafter",
    "FakeEncoder",
    "FakeMediaReader",
    "FakeMemory",
    "FakeMemoryError",
    "FakeRunner",
    "FakeStore",
    "FakeVocabulary",
    "Fault",
    "FaultSchedule",
    "FaultyRunner",
    "ManualClock",
    "SeededFaults",
    "adapted",
    "fake_logits",
    "media_codes",
    "naive_answer",
    "next_digest",
]
