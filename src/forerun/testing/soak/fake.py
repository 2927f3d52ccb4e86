"""The fake model under a soak: answers are compared with the naive oracle's, and a seed tells the same story again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from forerun.core.config import SchedulerConfig
from forerun.core.memory import DENSE, MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import changed_sequence
from forerun.testing.clock import ManualClock
from forerun.testing.drafter import FakeDrafter
from forerun.testing.faults import SeededFaults
from forerun.testing.faulty_runner import FaultyRunner
from forerun.testing.model import FakeVocabulary
from forerun.testing.oracle import Answer, naive_answer
from forerun.testing.runner import FakeRunner
from forerun.testing.soak.subject import Course, SoakError, Subject
from forerun.testing.store import FAKE_SIZES, FakeStore

_VOCABULARY = FakeVocabulary()
_LETTERS = (0, 0, 0, 1, 3, 4)
_STEP = 0.01
_ADAPTERS: tuple[dict[str, float], ...] = ({}, {}, {}, {"a": 1.0})


class _OracleAnswers:
    """Implements soak.subject.Answers by the naive oracle."""

    ties = 0

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config

    def check(self, course: Course) -> None:
        request, tokens = course.request, course.tokens
        expected = naive_answer(request.prompt, request.params, _VOCABULARY, self._config.n_ctx, self._config.adapters)
        text = "".join(delta.text for delta in course.deltas)
        reason = course.finish_reason
        if course.is_whole and reason is not None and Answer(tokens, text, reason) != expected:
            raise SoakError(f"{request.id} got {tokens} ({reason}), alone it gets {expected}")
        if tokens != expected.tokens[: len(tokens)] or not expected.text.startswith(text):
            raise SoakError(f"{request.id} began with {tokens}, alone it gets {expected}")


def fake_subject(
    seed: int, rate: float = 0.01, kind: MemoryKind = DENSE, make_scheduler: Callable[..., Scheduler] = Scheduler
) -> Subject:
    """A small pool under much pressure, with a draft model, drafts from texts, host memory and a disk, all fake.

    `kind`: the target's memory; `rate`: share of the steps, and of the store's calls, that are struck;
    `make_scheduler`: called as Scheduler is, for one that is watched.
    """
    config = SchedulerConfig(
        n_ctx=240,
        n_seq_max=14,
        max_num_seqs=8,
        max_num_batched_tokens=48,
        prefill_rows_beside_decode=16,
        prefill_quantum=8,
        speculation=4,
        draft_n_ctx=120,
        memory=kind,
        cache_ram=20_000,
        cache_disk=100_000,
        segment_tokens=16,
        segment_sizes=FAKE_SIZES,
        min_prefix_tokens=8,
        adapters={"a": "content of a"},
    )
    clock, faults = ManualClock(), SeededFaults(seed, rate)
    store = FakeStore(config.cache_ram, faults.strikes_store, delay=2)
    scheduler = make_scheduler(config, _VOCABULARY, stored=store.scan())
    drafter = FakeDrafter(config.draft_n_ctx, _VOCABULARY.size, 0.7)
    runner = FakeRunner(
        config.n_ctx, _VOCABULARY.size, drafter=drafter, kind=kind, store=store, adapters=config.adapters
    )

    def time() -> float:
        clock.advance(_STEP)
        return clock.now

    return Subject(
        name=f"fake model, {_kind(kind)}",
        scheduler=scheduler,
        runner=FaultyRunner(runner, faults, scheduler.request_of, sleep=clock.advance),
        faults=faults,
        answers=_OracleAnswers(config),
        draw=_Requests().draw,
        check_memory=lambda: _check_memory(scheduler, runner, store),
        clock=time,
    )


class _Requests:
    """Prompts that share beginnings, repeat and go on; now and then one that takes nearly all of the memory."""

    def __init__(self) -> None:
        self._past: list[PromptLayout] = []

    def draw(self, random: Random, name: str, arrival: float) -> Request:
        prompt = self._prompt(random)
        self._past = [*self._past[-20:], prompt]
        params = SamplingParams(
            max_tokens=random.choice([1, 8, 20, 40, None]),
            temperature=random.choice([0.0, 1.5]),
            seed=random.randrange(4),
            stop=random.choice([(), (), ("abba",)]),
            ignore_eos=random.random() < 0.6,
            speculation=random.choice([None, None, 0, 2]),
            adapters=random.choice(_ADAPTERS),
        )
        return Request(
            id=name,
            prompt=prompt,
            params=params,
            arrival=arrival,
            tenant=random.choice(["", "", "x"]),
            priority=random.choice([0, 0, 0, 1]),
            reuses_cache=random.random() < 0.9,
            reports_progress=True,
        )

    def _prompt(self, random: Random) -> PromptLayout:
        if self._past and random.random() < 0.4:
            more = random.choices(_LETTERS, k=random.randrange(12))
            prompt = random.choice(self._past).extended([PromptSegment.text(more)])
            if prompt.logical_tokens < 160:
                return prompt
        length = random.choice([5, 20, 60, 190]) + random.randrange(10)
        tokens = [*random.choice([(), [0] * 16, [1] * 30]), *random.choices(_LETTERS, k=length)]
        if random.random() < 0.1:
            return PromptLayout([PromptSegment.media("image", 7, 3), PromptSegment.text(tokens)])
        return PromptLayout.of_text(tokens)


def _check_memory(scheduler: Scheduler, runner: FakeRunner, store: FakeStore) -> None:
    pool = scheduler.pool
    unknown = {changed_sequence(operation) for operation in pool.pending_operations} | pool.quarantined
    for sequence_id in set(range(scheduler.config.n_seq_max)) - unknown:
        _same(f"sequence {sequence_id}", runner.memory.held(sequence_id), pool.target_cells.held(sequence_id))
        if runner.drafter is not None:
            held = runner.drafter.memory.held(sequence_id)
            _same(f"the draft's sequence {sequence_id}", held, pool.draft_cells.held(sequence_id))
    if not unknown:
        _same("the memory", runner.memory.used, pool.target_cells.used)
    if store.nbytes > scheduler.config.cache_ram:
        raise SoakError(f"the host tier holds {store.nbytes} bytes of {scheduler.config.cache_ram}")


def _same(what: str, held: int, known: int) -> None:
    if held != known:
        raise SoakError(f"{what} holds {held} cells, the bookkeeping says {known}")


def _kind(kind: MemoryKind) -> str:
    if kind.has_state:
        return "with a state"
    return f"a window of {kind.window}" if kind.window else "dense"
