"""What the scheduler itself costs, on the FakeRunner: milliseconds of Python a step, and of a prefix lookup."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import Figures, Spread, spread
from forerun.core.config import SchedulerConfig
from forerun.core.pool import SequencePool
from forerun.core.prefix import ReusablePrefix
from forerun.core.prompt import PromptLayout, Tokens
from forerun.core.request import Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.testing import FakeRunner, FakeVocabulary

_RUNNING = 64
_VOCABULARY = FakeVocabulary([bytes([97 + index % 26]) for index in range(50)], end_tokens=())


def run() -> Figures:
    return {
        "step_ms_64_running": step_cost(stop=()),
        "step_ms_64_running_with_stop_strings": step_cost(stop=("zzzzz", "qqq")),
        "lookup_ms_100k_tokens_1000_prefixes_sharing": lookup_cost(shared=True),
        "lookup_ms_100k_tokens_1000_prefixes_unrelated": lookup_cost(shared=False),
    }


def step_cost(stop: tuple[str, ...]) -> Spread:
    """Schedule + update, detokenising and stops included, while 64 requests decode."""
    n_ctx = _RUNNING * 1024
    scheduler = Scheduler(
        SchedulerConfig(n_ctx=n_ctx, max_num_seqs=_RUNNING, n_seq_max=128, max_num_batched_tokens=512), _VOCABULARY
    )
    runner = FakeRunner(n_ctx, _VOCABULARY.size)
    rng = np.random.default_rng(0)
    for index in range(_RUNNING):
        prompt = PromptLayout.of_text(rng.integers(0, _VOCABULARY.size, 200))
        scheduler.add(Request(id=str(index), prompt=prompt, params=SamplingParams(max_tokens=200, stop=stop)))
    costs: list[float] = []
    while scheduler.has_work:
        started = time.perf_counter()
        plan = scheduler.schedule(started)
        decided = time.perf_counter()
        result = runner.execute(plan)
        done = time.perf_counter()
        scheduler.update(plan, result)
        if len(plan.decode) == _RUNNING:
            costs.append((time.perf_counter() - done + decided - started) * 1e3)
    return spread(costs)


def lookup_cost(*, shared: bool) -> Spread:
    """Find the best source for a 100,000-token prompt among 1,000 cached prefixes of up to 100,000 tokens."""
    rng = np.random.default_rng(0)
    base = random_tokens(rng, 100_000)
    pool = SequencePool(1000)
    for _ in range(1000):
        sequence = pool.acquire()
        assert sequence is not None
        cut = int(rng.integers(1000, 100_000)) if shared else 0
        tokens = np.concatenate([base[:cut], random_tokens(rng, 2000)])
        pool.release(sequence, ReusablePrefix(PromptLayout.of_text(tokens)))
    prompt = PromptLayout.of_text(np.concatenate([base[:99_000], random_tokens(rng, 1000)]))
    return spread([_milliseconds(lambda: pool.find(prompt)) for _ in range(50)])


def random_tokens(rng: np.random.Generator, count: int) -> Tokens:
    return rng.integers(0, 50_000, count).astype(np.int32)


def _milliseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3
