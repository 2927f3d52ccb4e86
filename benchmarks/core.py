"""What the scheduler itself costs, on the FakeRunner: milliseconds of Python a step, and of a prefix lookup."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import Figures, Spread, spread
from forerun.core.config import SchedulerConfig
from forerun.core.costs import CostCurve, LiveCosts, StepCosts
from forerun.core.history import TokenHistory
from forerun.core.pool import SequencePool
from forerun.core.prefix import ReusablePrefix
from forerun.core.prompt import PromptLayout, Tokens
from forerun.core.request import Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.core.step import DraftRequest
from forerun.core.suffix import SuffixIndex, WrittenText
from forerun.testing import FakeRunner, FakeVocabulary

_RUNNING = 64
_CPU = CostCurve((1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128), (8, 16, 22, 27, 40, 52, 80, 105, 212, 329, 583))
_VOCABULARY = FakeVocabulary([bytes([97 + index % 26]) for index in range(50)], end_tokens=())


def run() -> Figures:
    return {
        "step_ms_64_running": step_cost(stop=()),
        "step_ms_64_running_with_stop_strings": step_cost(stop=("zzzzz", "qqq")),
        "step_ms_64_running_drafting_by_gain": step_cost(stop=(), by_gain=True),
        "suffix_index_us": suffix_index(),
        "lookup_ms_100k_tokens_1000_prefixes_sharing": lookup_cost(shared=True),
        "lookup_ms_100k_tokens_1000_prefixes_unrelated": lookup_cost(shared=False),
    }


def step_cost(stop: tuple[str, ...], *, by_gain: bool = False) -> Spread:
    """Schedule + update, detokenising and stops included, while 64 requests decode.

    `by_gain`: with the lookup drafters (own text and past outputs) on, on a CPU's costs, in text that gives no draft
    that pays.
    """
    n_ctx = _RUNNING * 1024
    config = SchedulerConfig(
        n_ctx=n_ctx,
        max_num_seqs=_RUNNING,
        n_seq_max=128,
        max_num_batched_tokens=512,
        speculation=32 if by_gain else 0,
    )
    scheduler = Scheduler(config, _VOCABULARY, costs=StepCosts(LiveCosts(_CPU)) if by_gain else None)
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


def suffix_index() -> dict[str, object]:
    """Microseconds of the full index of past outputs: lookups that find nothing or something, and writing."""
    rng = np.random.default_rng(0)
    index = SuffixIndex(2**20)
    written: list[float] = []
    for _ in range(550):
        history = _zipf_text(rng)
        write = functools.partial(index.write, WrittenText(history), history, "", is_whole=True)
        written.append(_milliseconds(write) / 2032 * 1e3)
    asked = {
        "miss": random_tokens(rng, 500),
        "hit_of_8_tokens": history.slice(0, 1500),
        "hit_of_32_tokens": history.slice(0, 1500),
    }
    figures: dict[str, object] = {"write_a_token": spread(written), "bytes_a_token": index.nbytes / index.capacity}
    for name, tokens in asked.items():
        ask = functools.partial(index.propose, [DraftRequest(0, tokens, 0, 32 if name.endswith("32_tokens") else 8)])
        figures[name] = spread([_milliseconds(ask) * 1e3 for _ in range(200)])
    return figures


def _zipf_text(rng: np.random.Generator) -> TokenHistory:
    """A prompt of 100 and an answer of 2,000 tokens, some far more frequent than others."""
    tokens = np.minimum(rng.zipf(1.2, 2100), 49_999).astype(np.int32)
    history = TokenHistory(PromptLayout.of_text(tokens[:100]))
    for token in tokens[100:].tolist():
        history.append(token)
    return history


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
