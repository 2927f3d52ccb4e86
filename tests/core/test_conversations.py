"""Conversations that come back: many turns, a pool that holds few of them, tiers of any size, restarts and faults.

Answers are the oracle's, always; and what was computed once is not computed again while it is kept somewhere.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from forerun.core.config import SchedulerConfig
from forerun.core.memory import MemoryKind
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import Request, SamplingParams
from forerun.core.scheduler import Scheduler
from forerun.testing import FAKE_SIZES, FakeDrafter, FakeRunner, FakeStore, FakeVocabulary, naive_answer

VOCABULARY = FakeVocabulary([b"a", b"b", b"c", b"d", b"e", b"f", b""], end_tokens=[6])
SYSTEM = [1, 2, 3, 4, 5, 0, 1, 6]


@dataclass
class World:
    """An engine on the FakeRunner that can be restarted, and what happened in it."""

    config: SchedulerConfig
    rng: random.Random
    faults: float = 0.0
    delay: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = FakeStore(self.config.cache_ram, self.store_faults, self.delay)
        self.names = itertools.count()
        self.start()

    def store_faults(self, kind: str, _key: str) -> bool:
        failed = self.rng.random() < self.faults
        self.counts[f"{kind} failed"] += failed
        return failed

    def start(self) -> None:
        config = self.config
        drafter = None
        if config.draft_n_ctx:
            drafter = FakeDrafter(config.draft_n_ctx, VOCABULARY.size, 0.8, config.draft_memory)
        self.scheduler = Scheduler(config, VOCABULARY, stored=self.store.scan())
        self.runner = FakeRunner(
            config.n_ctx,
            VOCABULARY.size,
            drafter=drafter,
            kind=config.memory,
            store=self.store,
            adapters=config.adapters,
        )

    def restart(self) -> None:
        self.store = self.store.restarted()
        self.start()

    def answer(self, prompts: list[PromptLayout], tenant: str = "") -> list[tuple[int, ...]]:
        """All at once; each answer compared with the oracle's."""
        requests = {}
        for prompt in prompts:
            name = f"r{next(self.names)}"
            adapters = self.rng.choice([{}, {}, {"a": 1.0}, {"a": 0.5}, {"a": 1.0, "b": 2.0}])
            params = SamplingParams(max_tokens=self.rng.randint(1, 6), ignore_eos=True, adapters=adapters)
            requests[name] = Request(id=name, prompt=prompt, params=params, tenant=tenant)
            self.scheduler.add(requests[name])
        tokens: dict[str, list[int]] = {name: [] for name in requests}
        for _ in range(3000):
            if not self.scheduler.has_work:
                break
            plan = self.scheduler.schedule(float(self.counts["steps"]))
            result = self.runner.execute(plan)
            for operation in plan.operations:
                self.counts[type(operation).__name__] += 1
            self.counts["steps"] += 1
            self.counts["unrestorable"] += len(result.unrestorable)
            assert result.failure is None or result.unrestorable, result.failure
            for delta in self.scheduler.update(plan, result):
                tokens[delta.request_id].extend(delta.tokens)
                if delta.usage is not None:
                    self.counts["cached"] += delta.usage.cached_tokens
                    self.counts["host"] += delta.usage.cached_host_tokens
                    self.counts["disk"] += delta.usage.cached_disk_tokens
                    assert delta.error is None
            self.scheduler.check_integrity()
            self.check_store()
        assert not self.scheduler.has_work, "it never ends"
        for name, request in requests.items():
            config = self.config
            expected = naive_answer(request.prompt, request.params, VOCABULARY, config.n_ctx, config.adapters)
            assert tuple(tokens[name]) == expected.tokens, name
        return [tuple(own) for own in tokens.values()]

    def wish(self, prompt: PromptLayout, tenant: str) -> None:
        """What callers may ask of the cache at any time."""
        scheduler, scope = self.scheduler, self.scheduler.scope_of(tenant)
        match self.rng.randrange(40):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                scheduler.pin(prompt, scope, self.counts["steps"] + self.rng.randint(1, 60))
            case 7:
                scheduler.clear_cache(self.rng.choice([None, scope]))
            case 8:
                scheduler.pool.invalidate_reuse()
            case 9 | 10:
                found = scheduler.look_up(prompt, scope)
                assert 0 <= found.cached_tokens < prompt.logical_tokens
            case _:
                return
        scheduler.check_integrity()

    def check_store(self) -> None:
        tiers, pool = self.scheduler.pool.tiers, self.scheduler.pool
        if tiers is None:
            return
        assert self.store.nbytes <= self.config.cache_ram
        if not pool.pending_operations:
            kept = list(tiers.segments())
            assert {one.header.key for one in kept if one.is_at_hand} == self.store.host.keys()
            on_disk = {one.header.key for one in kept if one.disk is not None}
            assert not (on_disk ^ self.store.disk.keys()) - self.store.in_transit


KINDS = {"dense": MemoryKind(), "window": MemoryKind(window=5), "state": MemoryKind(has_state=True)}


def config_of(rng: random.Random, kind: str) -> SchedulerConfig:
    return SchedulerConfig(
        n_ctx=rng.choice([80, 120, 400]),
        n_seq_max=rng.choice([3, 5, 12]),
        max_num_seqs=3,
        max_num_batched_tokens=rng.choice([8, 64]),
        prefill_rows_beside_decode=4,
        prefill_quantum=4,
        speculation=rng.choice([0, 3]),
        draft_n_ctx=rng.choice([0, 120]),
        min_prefix_tokens=4,
        memory=KINDS[kind],
        draft_memory=KINDS[rng.choice(["dense", kind])],
        cache_ram=rng.choice([1500, 6000, 10**6]),
        cache_disk=rng.choice([0, 20_000, 10**6]),
        retention=rng.choice(["value", "lru", "fifo"]),
        segment_sizes=FAKE_SIZES,
        segment_tokens=rng.choice([3, 8, 512]),
        adapters={"a": "content of a", "b": "content of b"},
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_conversations_get_the_oracle_s_answers_whatever_moves_and_fails(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    world = World(config_of(rng, kind), rng, faults=rng.choice([0.0, 0.1]), delay=rng.choice([0, 4]))
    conversations = [PromptLayout.of_text([*SYSTEM, rng.randrange(6), rng.randrange(6), 6]) for _ in range(6)]
    conversations[0] = PromptLayout(
        [*conversations[0].segments, PromptSegment.media("image", 7, 3), PromptSegment.text([1, 2])]
    )
    for _ in range(25):
        chosen = rng.sample(range(len(conversations)), rng.randint(1, 3))
        tenant = rng.choice(["", "", "x"])
        world.wish(conversations[chosen[0]], tenant)
        answers = world.answer([conversations[index] for index in chosen], tenant)
        for index, tokens in zip(chosen, answers, strict=True):
            kept = tokens if rng.random() < 0.7 else tokens[:1]  # clients drop what they do not want to keep
            said = [rng.randrange(6) for _ in range(rng.randint(1, 4))]
            longer = conversations[index].extended([PromptSegment.text([*kept, 6, *said, 6])])
            fits = longer.logical_tokens + 8 < world.config.n_ctx
            conversations[index] = longer if fits else PromptLayout.of_text([*SYSTEM, rng.randrange(6), 6])
        if rng.random() < 0.15:
            content = rng.choice(["content of a", "trained again"])
            world.config = replace(world.config, adapters={**world.config.adapters, "a": content})
            world.restart()
